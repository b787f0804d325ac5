-- touch_blob: lets a blob live for at least so long from now.
-- KEYS  1 the blob
-- ARGV  1 lifetime in ms; a longer one, or none, is kept
-- Returns  the description of the blob | nil: it is not there or lacks a chunk
local facts = redis.call('HGET', KEYS[1], 'facts')
if not facts then return facts end
local readable, known = pcall(cjson.decode, facts)
if not readable or type(known) ~= 'table' or redis.call('HLEN', KEYS[1]) ~= (tonumber(known.chunks) or -1) + 1 then
  return false
end
local left = redis.call('PTTL', KEYS[1])
if left ~= -1 and left < tonumber(ARGV[1]) then redis.call('PEXPIRE', KEYS[1], ARGV[1]) end
return facts
