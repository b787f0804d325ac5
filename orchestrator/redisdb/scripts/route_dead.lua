-- route_dead: an entry that will not be tried again goes to the dead letters, is acknowledged and reported.
-- An entry that is not pending any more was dealt with by another router: nothing happens then.
-- KEYS  1 stream of the entry  2 dead letters  3 stream of the reports  4 totals
-- ARGV  1 group  2 entry id  3 number of reports  4… the reports, then field, value, … of the dead letter
-- Returns  id of the dead letter | false
-- Complexity: O(1).
-- include: base
if redis.call('XACK', KEYS[1], ARGV[1], ARGV[2]) == 0 then return false end
local reports = tonumber(ARGV[3])
local id = redis.call('XADD', KEYS[2], '*', unpack(ARGV, 4 + reports))
for i = 4, 3 + reports do
  publish(KEYS[3], KEYS[4], ARGV[i])
end
return id
