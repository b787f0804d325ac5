-- release: a holder is gone: the run is queued again, or ends when it was asked to stop or lost its holder too often.
-- Nothing happens unless the run is still held exactly as it was when its holder was seen to be gone.
-- A lease that stood still is counted apart from a process that was seen to die: that one the run itself may have ended.
-- KEYS  1 session
-- ARGV  1 request: parent; run; claim and lease: id and renewal counter as seen; most_lost: workers that it survives;
--         most_died: processes that may die of it; died: how its process died, else its lease stood still; wait_ms until it
--         may be tried again; try: how it ended (see lib/tries.lua); unmade: the envelopes that report an end are still to be
--         made; proof: of the reason; stream: of the envelopes
--       2… the envelopes
-- Returns  {'queued', times lost} | {'ended', session state} | {'moved'} | {'report', reason}: it would end, make the
--          envelopes | {'parent', its id}: prove it to that one
-- include: base
-- include: termination
-- include: tries
local now = clock(q.now)
local r = fields(RUN, 'id', 'state', 'claim', 'lease_version', 'lost', 'died', 'stop', 'stop_state', 'items', 'attempt')
if r.state ~= 'running' or r.claim ~= (q.claim or '') or r.lease_version ~= (q.lease or '') then return { 'moved' } end
local how = q.died or ''
local lost, died = count(r.lost), count(r.died)
if how == '' then lost = lost + 1 else died = died + 1 end
local s = session_facts()
if new_parent(s) then return { 'parent', s.parent } end
local state, why
if r.stop ~= '' then
  state, why = r.stop_state ~= '' and r.stop_state or 'stopped', r.stop .. ', and its worker was lost'
elseif lost > (q.most_lost or 0) then
  state, why = 'failed', 'its worker was lost ' .. lost .. ' times'
elseif died >= (q.most_died or 0) then
  state, why = 'failed', 'its worker process died ' .. died .. ' times, at last with ' .. how
end
if state and q.unmade then return { 'report', why } end
if state then
  note_try(q.try, now, 0)
  redis.call('HSET', RUN, 'lost', lost, 'died', died)
  fail_run(s, r, state, why, now, q.proof)
  report(unpack(ARGV, 2))
  return { 'ended', state }
end
local wait_ms, reason = q.wait_ms or 0, how == '' and 'lease lost' or 'its worker process died: ' .. how
note_try(q.try, now, now + wait_ms)
redis.call('HSET', RUN, 'lost', lost, 'died', died)
queue_again(r.id, reason, 'attempt ' .. r.attempt .. ': ' .. reason, wait_ms, now)
return { 'queued', lost }
