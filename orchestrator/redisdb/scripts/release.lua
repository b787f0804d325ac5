-- release: a lease was lost: the run is queued again, or ends when it was asked to stop or was lost too often.
-- Nothing happens unless the run is still held exactly as it was when it was seen not to move.
-- KEYS  as in lib/over.lua
-- ARGV  1 now or ''  2 claim id as seen  3 renewal counter as seen  4 limit of lost workers
--       5 '1': the envelopes that report an end are still to be made  6… those envelopes
-- Returns  {'queued', times lost} | {'ended', session state} | {'moved'} | {'report', reason}: it would end, make the
--          envelopes | {'parent', its id}: pass the keys of that parent
-- include: base
-- include: over
local now = clock(ARGV[1])
local r = fields(RUN, 'id', 'state', 'claim', 'beat', 'lost', 'stop', 'stop_state', 'items')
if r.state ~= 'running' or r.claim ~= ARGV[2] or r.beat ~= ARGV[3] then return { 'moved' } end
local lost = count(r.lost) + 1
local s = session_facts()
if new_parent(s) then return { 'parent', s.parent } end
local state, why
if r.stop ~= '' then
  state, why = r.stop_state ~= '' and r.stop_state or 'stopped', r.stop .. ', and its worker was lost'
elseif lost > tonumber(ARGV[4]) then
  state, why = 'failed', 'its worker was lost ' .. lost .. ' times'
end
if state then
  if ARGV[5] == '1' then return { 'report', why } end
  fail_run(s, r, state, why, now)
  report(unpack(ARGV, 6))
  return { 'ended', state }
end
redis.call('HSET', RUN, 'state', 'queued', 'claim', '', 'lost', lost, 'reason', 'lease lost')
redis.call('ZREM', RUNNING, r.id)
redis.call('ZADD', DISPATCH, now, r.id)
return { 'queued', lost }
