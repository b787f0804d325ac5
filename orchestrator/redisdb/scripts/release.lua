-- release: a lease was lost: the run is queued again, or ends when it was asked to stop or was lost too often.
-- Nothing happens unless the run is still held exactly as it was when it was seen not to move.
-- KEYS  as in lib/over.lua
-- ARGV  1 now or ''  2 claim id as seen  3 renewal counter as seen  4 limit of lost workers  5 envelope or ''
-- Returns  {'queued', times lost} | {'ended', session state} | {'moved'} | {'envelope'} | {'parent', its id}: pass
--          the keys of that parent
-- include: base
-- include: over
local now = clock(ARGV[1])
local r = fields(RUN, 'id', 'state', 'claim', 'beat', 'lost', 'stop', 'stop_state', 'items')
if r.state ~= 'running' or r.claim ~= ARGV[2] or r.beat ~= ARGV[3] then return { 'moved' } end
local lost = count(r.lost) + 1
local s = session_facts()
if new_parent(s) then return { 'parent', s.parent } end
if r.stop ~= '' then
  local state = r.stop_state ~= '' and r.stop_state or 'stopped'
  fail_run(s, r, state, r.stop .. ', and its worker was lost', now)
  return { 'ended', state }
end
if lost > tonumber(ARGV[4]) then
  if ARGV[5] == '' then return { 'envelope' } end
  fail_run(s, r, 'failed', 'its worker was lost ' .. lost .. ' times', now)
  report(ARGV[5])
  return { 'ended', 'failed' }
end
redis.call('HSET', RUN, 'state', 'queued', 'claim', '', 'lost', lost, 'reason', 'lease lost')
redis.call('ZREM', RUNNING, r.id)
redis.call('ZADD', DISPATCH, now, r.id)
return { 'queued', lost }
