-- route_dead: an entry that will not be tried again goes to the dead letters, is acknowledged and reported.
-- An entry that is not pending any more was dealt with by another router: nothing happens then.
-- The mark that an entry got while it waited goes with it: nothing came of it, so a copy is no duplicate.
-- KEYS  1 stream of the entry  2 dead letters  3 stream of the reports  4 totals  5 seen mark, or KEYS[2] for none
-- ARGV  1 group  2 entry id  3 number of reports  4… the reports, then field, value, … of the dead letter
-- Returns  id of the dead letter | false
-- Complexity: O(1).
-- include: base
-- include: mark
if redis.call('XACK', KEYS[1], ARGV[1], ARGV[2]) == 0 then return false end
if KEYS[5] ~= KEYS[2] and marked(KEYS[5], ARGV[2], '') == 'own' then redis.call('DEL', KEYS[5]) end
local reports = tonumber(ARGV[3])
local id = redis.call('XADD', KEYS[2], '*', unpack(ARGV, 4 + reports))
for i = 4, 3 + reports do
  publish(KEYS[3], KEYS[4], ARGV[i])
end
return id
