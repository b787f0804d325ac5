-- release: a holder is gone: the run is queued again, or ends when it was asked to stop or lost its holder too often.
-- Nothing happens unless the run is still held exactly as it was when its holder was seen to be gone.
-- A lease that stood still is counted apart from a process that was seen to die: that one the run itself may have ended.
-- KEYS  as in lib/termination.lua
-- ARGV  1 now or ''  2 claim id as seen  3 renewal counter as seen  4 lost workers that it survives
--       5 processes that may die of it  6 how its process died, or '': its lease stood still
--       7 ms until it may be tried again  8 how the try ended, as JSON (see lib/tries.lua)
--       9 '1': the envelopes that report an end are still to be made  10 proof of the reason
--       11… those envelopes
-- Returns  {'queued', times lost} | {'ended', session state} | {'moved'} | {'report', reason}: it would end, make the
--          envelopes | {'parent', its id}: pass the keys of that parent
-- include: base
-- include: termination
-- include: tries
local now = clock(ARGV[1])
local r = fields(RUN, 'id', 'state', 'claim', 'lease_version', 'lost', 'died', 'stop', 'stop_state', 'items', 'attempt')
if r.state ~= 'running' or r.claim ~= ARGV[2] or r.lease_version ~= ARGV[3] then return { 'moved' } end
local how = ARGV[6]
local lost, died = count(r.lost), count(r.died)
if how == '' then lost = lost + 1 else died = died + 1 end
local s = session_facts()
if new_parent(s) then return { 'parent', s.parent } end
local state, why
if r.stop ~= '' then
  state, why = r.stop_state ~= '' and r.stop_state or 'stopped', r.stop .. ', and its worker was lost'
elseif lost > tonumber(ARGV[4]) then
  state, why = 'failed', 'its worker was lost ' .. lost .. ' times'
elseif died >= tonumber(ARGV[5]) then
  state, why = 'failed', 'its worker process died ' .. died .. ' times, at last with ' .. how
end
if state and ARGV[9] == '1' then return { 'report', why } end
count_lost(S, RUN)
if state then
  note_try(ARGV[8], now, 0)
  redis.call('HSET', RUN, 'lost', lost, 'died', died)
  fail_run(s, r, state, why, now, ARGV[10])
  report(unpack(ARGV, 11))
  return { 'ended', state }
end
local wait_ms, reason = tonumber(ARGV[7]), how == '' and 'lease lost' or 'its worker process died: ' .. how
note_try(ARGV[8], now, now + wait_ms)
redis.call('HSET', RUN, 'lost', lost, 'died', died)
queue_again(r.id, reason, 'attempt ' .. r.attempt .. ': ' .. reason, wait_ms, now)
return { 'queued', lost }
