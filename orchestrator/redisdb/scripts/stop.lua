-- stop: end a session by hand or by policy. What never ran ends at once; what runs is asked first.
-- KEYS  1 session
-- ARGV  1 request: parent; reason; state to end in: stopped | failed | deleted; force: do not ask, end it now; unmade: the
--         envelopes that report an end are still to be made; proof: of the reason; stream: of the envelopes
--       2… the envelopes
-- Returns  {'ended', run that was queued and never starts, or ''} | {'asked', run} | {'over', state} | {'unknown'}
--          | {'parent', its id}: prove it to that one
--          | {'report', reason}: it would end, make the envelopes
-- include: base
-- include: termination
local now, reason = clock(q.now), q.reason or ''
local s = session_facts()
if s.id == '' then return { 'unknown' } end
if new_parent(s) then return { 'parent', s.parent } end
local deleting = q.state == 'deleted'
-- An heir that had finished may be failed by what it was handed.
local at_rest = s.state == 'finished' and s.run == '' and s.stop_pending == '' and queued == 0
if CLOSED[s.state] or (at_rest and not deleting) then
  if not (deleting and s.state ~= 'deleted') then return { 'over', s.state } end
  -- a session that has ended keeps what it told its parent; only its own records are closed
  redis.call('HSET', S, 'state', 'deleted', 'reason', reason, 'updated_ms', now)
  changed('session', s.id, '-', 'deleted')
  redis.call('ZADD', CLOSING, now, s.id)
  if s.parent == '' then owe_result(s.id, now) end
  session_stop(s, 'deleted')
  return { 'ended', '' }
end
local unstarted, r = '', nil
if s.run ~= '' then
  r = fields(RUN, 'id', 'state', 'items', 'claim', 'stop_state')
  -- A program outside of the stack holds no lease and hears no heartbeat: there is nobody to ask.
  if r.state == 'running' and not q.force and r.claim ~= 'external' then
    -- A later request to stop it only does not take back that it is to be deleted.
    if r.stop_state ~= 'deleted' then
      redis.call('HSET', RUN, 'stop', reason, 'stop_state', q.state)
      if r.stop_state ~= q.state then changed('run', s.id, s.run, 'running', 'asked to be ' .. q.state) end
    end
    return { 'asked', s.run }
  end
  if r.state == 'queued' then unstarted = s.run end
end
if q.unmade then return { 'report', reason } end
if r then
  fail_run(s, r, q.state, reason, now, q.proof)
else
  close_session(s, q.state, reason, now, q.proof)
  session_stop(s, q.state)
end
report(unpack(ARGV, 2))
return { 'ended', unstarted }
