-- route_dead: an entry that will not be tried again goes to the dead letters, is acknowledged and reported.
-- An entry that is not pending any more was dealt with by another router: nothing happens then.
-- KEYS  1 stream of the entry  2 dead letters  3 stream of the report  4 totals
-- ARGV  1 group  2 entry id  3 report or ''  4… field, value, … of the dead letter
-- Returns  id of the dead letter | false
-- Complexity: O(1).
-- include: base
if redis.call('XACK', KEYS[1], ARGV[1], ARGV[2]) == 0 then return false end
local id = redis.call('XADD', KEYS[2], '*', unpack(ARGV, 4))
publish(KEYS[3], KEYS[4], ARGV[3])
return id
