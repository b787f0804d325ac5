-- What becomes of the steps that a run recorded; see step.lua for the hash that holds them.

-- Headers of the last steps that a run keeps for people when it has ended.
local STEPS_SHOWN = 50

-- Drop some of the steps. A stored value stays until the run ends: another step may have the same one.
local function forget_steps(run, keys)
  local steps = run .. ':steps'
  for _, key in ipairs(keys) do
    local gone = redis.call('HDEL', steps, 'h:' .. key)
    redis.call('HDEL', steps, 'p:' .. key)
    if gone == 1 then redis.call('HINCRBY', run, 'steps', -1) end
  end
end

-- The run ends: all that it recorded goes, with the values that are stored beside it. Their keys are made from that
-- of the run, whose hash tag they share. What is no hash, because somebody overwrote it, goes as well.
-- The run keeps how many steps there were, and the headers of the last ones.
local function drop_steps(run)
  local steps = run .. ':steps'
  local kind = redis.call('TYPE', steps).ok
  if kind == 'none' then return end
  if kind == 'hash' then
    local headers = {}
    for _, field in ipairs(redis.call('HKEYS', steps)) do
      local which, name = string.sub(field, 1, 2), string.sub(field, 3)
      if which == 'v:' then redis.call('UNLINK', steps .. ':' .. name) end
      if which == 'h:' then
        local header = redis.call('HGET', steps, field)
        headers[#headers + 1] = { tonumber(string.match(header, '^{"at_ms":(%d+)')) or 0, header }
      end
    end
    if #headers > 0 then
      table.sort(headers, function(a, b) return a[1] < b[1] end)
      local last = {}
      for i = math.max(1, #headers - STEPS_SHOWN + 1), #headers do last[#last + 1] = headers[i][2] end
      redis.call('HSET', run, 'steps', #headers, 'last_steps', '[' .. table.concat(last, ',') .. ']')
    end
  end
  redis.call('UNLINK', steps)
end
