-- refuse: a launch that cannot be carried out: the pending session fails and its parent is told.
-- KEYS  as in lib/termination.lua
-- ARGV  1 now or ''  2 reason  3 proof of the reason
-- Returns  {'refused'} | {'over', state} | {'unknown'} | {'parent', its id}: pass that parent's keys
-- include: base
-- include: termination
local now = clock(ARGV[1])
local s = session_facts()
if new_parent(s) then return { 'parent', s.parent } end
if s.id == '' then return { 'unknown' } end
if s.state ~= 'pending' or s.run ~= '' then return { 'over', s.state } end
close_session(s, 'failed', ARGV[2], now, ARGV[3])
session_stop(s)
return { 'refused' }
