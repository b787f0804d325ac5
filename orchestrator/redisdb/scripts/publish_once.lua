-- publish_once: append an envelope to its stream and count it, unless that was done before under the same mark.
-- KEYS  1 stream  2 totals  3 mark
-- ARGV  1 ms that the mark lives  2 envelope
-- Returns  entry id, the one of before if there was one
-- Complexity: O(1).
-- include: base
local before = redis.call('GET', KEYS[3])
if before then return before end
local id = append(KEYS[1], KEYS[2], 'envelope', ARGV[2])
redis.call('SET', KEYS[3], id, 'PX', ARGV[1])
return id
