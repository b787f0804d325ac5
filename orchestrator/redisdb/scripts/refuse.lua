-- refuse: a launch that cannot be carried out: the pending session fails and its parent is told.
-- KEYS  1 session
-- ARGV  1 request: parent; reason; proof: of the reason
-- Returns  {'refused'} | {'over', state} | {'unknown'} | {'parent', its id}: prove it to that one
-- include: base
-- include: termination
local now = clock(q.now)
local s = session_facts()
if new_parent(s) then return { 'parent', s.parent } end
if s.id == '' then return { 'unknown' } end
if s.state ~= 'pending' or s.run ~= '' then return { 'over', s.state } end
close_session(s, 'failed', q.reason or '', now, q.proof)
session_stop(s, 'failed')
return { 'refused' }
