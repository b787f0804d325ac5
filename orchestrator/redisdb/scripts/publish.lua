-- publish: append an entry to a stream of messages, unless the stream is at its limit. Sent twice, it is appended twice;
-- the router takes the second entry for a duplicate of the same message-id.
-- KEYS  1 stream  2 totals
-- ARGV  1 most entries the stream may hold before this one; 0 for no limit  2… fields and values of the entry
-- Returns  entry id, or the length of the stream as a number when it is full
-- Complexity: O(1).
-- include: base
local limit = tonumber(ARGV[1])
local length = limit > 0 and redis.call('XLEN', KEYS[1]) or 0
if limit > 0 and length >= limit then return length end
return (append(KEYS[1], KEYS[2], unpack(ARGV, 2)))
