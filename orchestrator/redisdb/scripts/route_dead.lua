-- route_dead: an entry that will not be tried again goes to the dead letters, is acknowledged and reported.
-- An entry that is not pending any more was dealt with by another router: nothing happens then.
-- The mark that an entry got while it waited goes with it: nothing came of it, so a copy is no duplicate.
-- The dead letters keep to their limits: older ones are dropped, or this one, if it does not verify.
-- KEYS  1 stream of the entry  2 dead letters  3 stream of the reports  4 totals  5 seen mark, or KEYS[2] for none
--       6 index of the dead letters  7 their usage
-- ARGV  1 group  2 entry id  3 sender, or '' if its signature did not count
--       4 most dead letters  5 and bytes  6 most of one sender  7 and bytes  8 their lifetime in ms
--       9 number of reports  10… the reports, then field, value, … of the dead letter
-- Returns  {id of the dead letter, how many were dropped} | false
-- Complexity: O(log(dead letters)) and for each that is dropped.
-- include: base
-- include: mark
-- include: dead
check('XLEN', KEYS[2], KEYS[3])
check('HLEN', KEYS[4], KEYS[7])
check('ZCARD', KEYS[6])
if redis.call('XACK', KEYS[1], ARGV[1], ARGV[2]) == 0 then return false end
if KEYS[5] ~= KEYS[2] and marked(KEYS[5], ARGV[2], '') == 'own' then redis.call('DEL', KEYS[5]) end
local now = clock('')
local reports = tonumber(ARGV[9])
local fields = {unpack(ARGV, 10 + reports)}
local id = redis.call('XADD', KEYS[2], '*', unpack(fields))
dead_enter(KEYS[6], KEYS[7], dead_member_of({id, fields}))
local limits = {tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6]), tonumber(ARGV[7]), now - tonumber(ARGV[8])}
local dropped = dead_make_room(KEYS[2], KEYS[6], KEYS[7], ARGV[3], limits, now)
for i = 10, 9 + reports do publish(KEYS[3], KEYS[4], ARGV[i]) end
return {id, dropped}
