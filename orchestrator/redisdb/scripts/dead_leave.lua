-- dead_leave: a dead letter leaves, and an envelope is published in the same step: its replay, or the note that
-- somebody dropped it. A dead letter that is gone already leaves nothing behind.
-- Where a copy of the message was accepted meanwhile, its mark stays: the replay is a duplicate then.
-- KEYS  1 dead letters  2 stream of the envelope  3 totals  4 seen mark, or KEYS[1] for none
-- ARGV  1 id of the dead letter's entry  2 mark's lifetime in ms  3… field, value, … of the new entry
-- Returns  new entry id | false
-- Complexity: O(1).
if redis.call('XDEL', KEYS[1], ARGV[1]) == 0 then return false end
local id = redis.call('XADD', KEYS[2], '*', unpack(ARGV, 3))
redis.call('HINCRBY', KEYS[3], 'published:' .. string.match(KEYS[2], ':msg:(.*)$'), 1)
if KEYS[4] ~= KEYS[1] then
  redis.call('SET', KEYS[4], id, 'NX', 'PX', ARGV[2])
end
return id
