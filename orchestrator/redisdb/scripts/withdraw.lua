-- withdraw: a question is not to be answered any more: its asker stops waiting, or somebody else has replied.
-- It is closed if it is still open, and leaves the queue of who was asked if it is still there.
-- KEYS  1 session
-- ARGV  1 request: id of the question; reason; asker: its session; run and claim of the asker, else the caller may do it
-- Returns  {'open' | 'closed', '1' if it was still in the queue}: what the question was before | {'lost'}
-- include: base
-- include: request
local ASKER, ITEMS, QUEUE = session_key(q.asker), KEYS[1] .. ':items', KEYS[1] .. ':queue'
if q.claim and not held_run(in_shard('run:' .. q.run), q.claim) then return { 'lost' } end
local record = item(ITEMS, q.id)
local open = redis.call('HDEL', ASKER, 'question:' .. q.id) == 1
if open then redis.call('HINCRBY', ASKER, 'questions', -1) end
if open and is_approval(q.id) then close_approval(ITEMS, q.id, q.reason or '') end
local queued = record ~= nil and record.state == 'queued'
if queued or (record and record.state == 'asked') then mark_dead(ITEMS, q.id, record, q.reason or '') end
-- The session stays among those that are looked at: it may have a deadline that only an event speaks of.
if queued then redis.call('ZREM', QUEUE, q.id) end
return { open and 'open' or 'closed', queued and '1' or '0' }
