-- route_park: an entry that cannot be carried out now waits, durably, and is acknowledged.
-- An entry that is not pending any more was dealt with by another router: nothing happens then.
-- KEYS  1 stream of the entry  2 parked  3 parked message
-- ARGV  1 group  2 entry id  3 parked id  4 when to look at it again, in ms  5… field, value, … of the message
-- Returns  1 | 0: another router was first
-- Complexity: O(log(parked)).
if redis.call('XACK', KEYS[1], ARGV[1], ARGV[2]) == 0 then return 0 end
redis.call('HSET', KEYS[3], unpack(ARGV, 5))
redis.call('ZADD', KEYS[2], ARGV[4], ARGV[3])
return 1
