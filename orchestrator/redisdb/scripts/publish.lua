-- Appends an envelope to a stream, unless the stream is at its limit.
--
-- Repeating it (redis-py sends a command again when the connection broke under it) appends the envelope
-- twice; the router takes the second entry for what it is, a duplicate of the same message-id.
--
-- KEYS[1]  stream that the envelope goes to
-- KEYS[2]  totals of the shard
-- ARGV[1]  most entries the stream may hold before this one; 0 for no limit
-- ARGV[2…] fields and values of the entry
--
-- Returns the entry id, or the length of the stream as a number when it is full.
-- Complexity: O(1).
local limit = tonumber(ARGV[1])
if limit > 0 then
  local length = redis.call('XLEN', KEYS[1])
  if length >= limit then
    return length
  end
end
local id = redis.call('XADD', KEYS[1], '*', unpack(ARGV, 2))
redis.call('HINCRBY', KEYS[2], 'published:' .. string.match(KEYS[1], ':msg:(.*)$'), 1)
return id
