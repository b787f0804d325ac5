-- reject: a run does not take an item that it carries for what it says it is: the item is dead, with the reason.
-- KEYS  1 session
-- ARGV  1 request: run, claim; item; reason
-- Returns  {'rejected'} | {'over', state of the item} | {'lost'}
-- include: base
-- include: request
local ITEMS = KEYS[1] .. ':items'
local r = held_run(in_shard('run:' .. q.run), q.claim, 'id')
if not r then return { 'lost' } end
local record = item(ITEMS, q.item)
if not record or record.state ~= 'claimed' or record.run ~= r.id then return { 'over', record and record.state or 'unknown' } end
-- Whoever put a question is told that no reply will come.
if string.sub(q.item, 1, 4) == 'ask_' then redis.call('ZADD', in_shard('timers'), clock(q.now), 'rejected|' .. q.item) end
-- A callback whose record was made a question is counted all the same.
record.rejected, record.kind = true, string.sub(q.item, 1, 3) == 'cb_' and 'completion' or record.kind
mark_dead(ITEMS, q.item, record, q.reason or '')
if record.kind == 'completion' then count_callbacks(KEYS[1], record.group, 'dead', 1) end
return { 'rejected' }
