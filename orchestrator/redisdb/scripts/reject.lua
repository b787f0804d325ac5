-- reject: a run does not take an item that it carries for what it says it is: the item is dead, with the reason.
-- KEYS  1 session  2 items  3 run
-- ARGV  1 claim id  2 item id  3 reason
-- Returns  {'rejected'} | {'over', state of the item} | {'lost'}
-- include: base
local r = held_run(KEYS[3], ARGV[1], 'id')
if not r then return { 'lost' } end
local record = item(KEYS[2], ARGV[2])
if not record then return { 'over', 'unknown' } end
if record.state ~= 'claimed' or record.run ~= r.id then return { 'over', record.state } end
record.rejected = true
mark_dead(KEYS[2], ARGV[2], record, ARGV[3])
if record.kind == 'completion' then count_callbacks(KEYS[1], record.group, 'dead', 1) end
return { 'rejected' }
