-- route_report: a program outside of the stack says how the session it runs ended: this is the commit of its run.
-- KEYS  1 session
-- ARGV  1 request: mark (see lib/mark.lua); parent; status: completed | partial-success | failed; message: its id; proof: of the text;
--         late: why a session fails whose time had passed; late_proof: of that
--       2 text  3 what it says beside its text, as JSON, or ''
-- Returns  {'done', state} | {'duplicate'} | {'over'}: it has ended already | {'other'}: its id is another message's | {'unknown'} | {'pending'}: its launch has not been
--          routed yet | {'held'}: a worker of ours runs it; on the last four nothing was acknowledged
-- Complexity: O(items in its queue).
-- include: base
-- include: mark
-- include: termination
local now = clock(q.now)
local answer, applied = answered(q.mark)
if answer or applied then return answer or { 'over' } end -- it may have been resumed since
local s = session_facts()
if s.id == '' or new_parent(s) then return { 'unknown' } end
local r = fields(RUN, 'state', 'claim', 'items')
if s.run == '' and s.state == 'pending' then return { 'pending' } end
-- Its program may be quicker than the router that began it, or than the sweep where that router died.
local taken = r.claim == 'external' or (r.state == 'queued' and r.claim == '')
if s.run ~= '' and not taken then return { 'held' } end
local late = s.run ~= '' and q.status ~= 'failed' and overdue(now)
accept(q.mark)
if s.run == '' or CLOSED[s.state] then return { 'over' } end
if late then
  fail_run(s, r, 'failed', q.late, now, q.late_proof)
  return { 'done', 'failed' }
end
END.body, END.message = ARGV[3], q.message or ''
if q.status == 'failed' then
  fail_run(s, r, 'failed', ARGV[2], now, q.proof)
  return { 'done', 'failed' }
end
-- What was said to it was sent as envelopes, which it has read.
local heard = cjson.decode(r.items)
for _, id in ipairs(redis.call('ZRANGE', QUEUE, 0, -1)) do heard[#heard + 1] = id end
for _, id in ipairs(heard) do
  local record = item(ITEMS, id)
  if record and (record.state == 'queued' or record.state == 'claimed') then
    if record.kind == 'completion' then count_callbacks(S, record.group, 'delivered', 1) end
    record.state = 'delivered'
    save(ITEMS, id, record)
  end
end
redis.call('DEL', QUEUE)
redis.call('ZREM', WAITING, s.id)
end_run(s.run, 'completed', '', now)
redis.call('HDEL', BODIES, 'end')
redis.call('HSET', S, 'state', 'finished', 'run', '', 'updated_ms', now, 'ended_ms', now)
changed('session', s.id, '-', 'finished')
if s.parent == '' then owe_result(s.id, now) end
tell_parent(s, q.status, ARGV[2], now, q.proof)
session_stop(s, 'finished')
return { 'done', 'finished' }
