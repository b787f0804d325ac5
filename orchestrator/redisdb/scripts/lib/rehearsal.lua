-- Put before a script that is only to say what it would answer: it ends at its first command that is none of these,
-- before that is carried out. All its refusals come before that, as everything is checked before the first write.
local READS = {}
for name in string.gmatch('EXISTS GET HEXISTS HGET HGETALL HKEYS HLEN HMGET HVALS LINDEX LLEN LPOS PTTL SISMEMBER TIME TYPE XLEN '
  .. 'XPENDING XRANGE ZCARD ZLEXCOUNT ZRANGE ZRANGEBYLEX ZRANGEBYSCORE ZRANK ZREVRANGE ZSCORE', '%u+') do
  READS[name] = true
end
local server = redis
local redis = setmetatable({}, { __index = server })
function redis.call(command, ...)
  if not READS[command] then error('REHEARSED to ' .. command, 0) end
  return server.call(command, ...)
end
function redis.pcall(command, ...)
  if not READS[command] then error('REHEARSED to ' .. command, 0) end
  return server.pcall(command, ...)
end
