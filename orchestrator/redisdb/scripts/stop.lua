-- stop: end a session by hand or by policy. What never ran ends at once; what runs is asked first.
-- KEYS  as in lib/termination.lua
-- ARGV  1 now or ''  2 reason  3 state to end in: stopped | failed | deleted  4 '1': do not ask, end it now
--       5 '1': the envelopes that report an end are still to be made  6 proof of the reason  7… those envelopes
-- Returns  {'ended', run that was queued and never starts, or ''} | {'asked', run} | {'over', state} | {'unknown'}
--          | {'run', its id} | {'parent', its id}: pass the keys of that run or parent
--          | {'report', reason}: it would end, make the envelopes
-- include: base
-- include: termination
local now = clock(ARGV[1])
local s = session_facts()
if s.id == '' then return { 'unknown' } end
if new_parent(s) then return { 'parent', s.parent } end
local deleting = ARGV[3] == 'deleted'
-- An heir that had finished may be failed by what it was handed.
local at_rest = s.state == 'finished' and s.run == '' and s.stop_pending == '' and redis.call('ZCARD', QUEUE) == 0
if CLOSED[s.state] or (at_rest and not deleting) then
  if not (deleting and s.state ~= 'deleted') then return { 'over', s.state } end
  -- a session that has ended keeps what it told its parent; only its own records are closed
  redis.call('HSET', S, 'state', 'deleted', 'reason', ARGV[2], 'updated_ms', now)
  changed('session', s.id, '-', 'deleted')
  redis.call('ZADD', CLOSING, now, s.id)
  if s.parent == '' then owe_result(s.id, now) end
  session_stop(s)
  return { 'ended', '' }
end
local unstarted, r = '', nil
if s.run ~= '' then
  r = fields(RUN, 'id', 'state', 'items', 'claim', 'stop_state')
  if r.id ~= s.run then return { 'run', s.run } end
  -- A program outside of the stack holds no lease and hears no heartbeat: there is nobody to ask.
  if r.state == 'running' and ARGV[4] ~= '1' and r.claim ~= 'external' then
    -- A later request to stop it only does not take back that it is to be deleted.
    if r.stop_state ~= 'deleted' then
      redis.call('HSET', RUN, 'stop', ARGV[2], 'stop_state', ARGV[3])
      if r.stop_state ~= ARGV[3] then changed('run', s.id, s.run, 'running', 'asked to be ' .. ARGV[3]) end
    end
    return { 'asked', s.run }
  end
  if r.state == 'queued' then unstarted = s.run end
end
if ARGV[5] == '1' then return { 'report', ARGV[2] } end
if r then
  fail_run(s, r, ARGV[3], ARGV[2], now, ARGV[6])
else
  close_session(s, ARGV[3], ARGV[2], now, ARGV[6])
  session_stop(s)
end
report(unpack(ARGV, 7))
return { 'ended', unstarted }
