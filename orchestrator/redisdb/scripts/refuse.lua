-- refuse: a launch that cannot be carried out: the pending session fails and its parent is told.
-- The router's form marks the message and acknowledges its entry in the same step.
-- KEYS  as in lib/over.lua, then 19 seen mark  20 stream of the entry
-- ARGV  1 now or ''  2 reason  3 entry id or ''  4 group  5 mark's lifetime in ms  6 envelope or ''
-- Returns  {'refused'} | {'over', state} | {'duplicate'} | {'unknown'} | {'parent', its id}: pass that parent's keys
-- include: base
-- include: over
local now = clock(ARGV[1])
local entry = ARGV[3]
if entry ~= '' then
  local mark = redis.call('GET', KEYS[19])
  if mark and mark ~= entry then
    redis.call('XACK', KEYS[20], ARGV[4], entry)
    return { 'duplicate' }
  end
end
local s = session_facts()
if new_parent(s) then return { 'parent', s.parent } end
if entry ~= '' then
  redis.call('SET', KEYS[19], entry, 'PX', ARGV[5])
  redis.call('XACK', KEYS[20], ARGV[4], entry)
end
if s.id == '' then return { 'unknown' } end
if s.state ~= 'pending' or s.run ~= '' then return { 'over', s.state } end
close_session(s, 'failed', ARGV[2], now)
session_stop(s)
report(ARGV[6])
return { 'refused' }
