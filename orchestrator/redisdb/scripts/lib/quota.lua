-- How much a program said in this minute, with so many messages more, and the milliseconds that are left of the minute.
local function count_said(key, more)
  local said = redis.pcall('INCRBY', key, more)
  if type(said) ~= 'number' then
    -- Somebody has overwritten the counter: it begins again.
    redis.call('DEL', key)
    said = redis.call('INCRBY', key, more)
  end
  if redis.call('PTTL', key) < 0 then redis.call('PEXPIRE', key, 60000) end
  return said, redis.call('PTTL', key)
end
