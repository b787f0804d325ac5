-- route_report: a program outside of the stack says how the session it runs ended: this is the commit of its run.
-- KEYS  as in lib/termination.lua, then 19 seen mark  20 stream of the entry  21 conversation
-- ARGV  1 now or ''  2 status completed | partial-success | failed  3 text  4 group  5 entry id  6 mark's lifetime in ms  7 digest
--       8 lifetime of a conversation in ms  9 proof of the text  10 what it says beside its text, as JSON, or ''  11 its message-id
--       12 why a session fails whose time had passed  13 proof of that
-- Returns  {'done', state} | {'duplicate'} | {'over', state} | {'other'}: its id is another message's | {'unknown'} | {'pending'}: its launch has not been
--          routed yet | {'held'}: a worker of ours runs it; on the last four nothing was acknowledged
-- Complexity: O(items in its queue).
-- include: base
-- include: mark
-- include: termination
local now = clock(ARGV[1])
local answer = answered(KEYS[19], KEYS[20], ARGV[4], ARGV[5], ARGV[7])
if answer then return answer end
local s = session_facts()
if s.id == '' or new_parent(s) then return { 'unknown' } end
local r = fields(RUN, 'id', 'state', 'claim', 'items')
if s.run ~= '' and r.id ~= s.run then return { 'unknown' } end
if s.run == '' and s.state == 'pending' then return { 'pending' } end
-- Its program may be quicker than the router that began it, or than the sweep where that router died.
local taken = r.claim == 'external' or (r.state == 'queued' and r.claim == '')
if s.run ~= '' and not taken then return { 'held' } end
local late = s.run ~= '' and ARGV[2] ~= 'failed' and overdue(now)
redis.call('PEXPIRE', KEYS[21], ARGV[8])
accept(KEYS[19], KEYS[20], ARGV[4], ARGV[5], ARGV[7], ARGV[6])
if s.run == '' or CLOSED[s.state] then return { 'over', s.state } end
if late then
  fail_run(s, r, 'failed', ARGV[12], now, ARGV[13])
  return { 'done', 'failed' }
end
END.body, END.message = ARGV[10], ARGV[11]
if ARGV[2] == 'failed' then
  fail_run(s, r, 'failed', ARGV[3], now, ARGV[9])
  return { 'done', 'failed' }
end
-- What was said to it travelled as envelopes, which it has read.
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
redis.call('HSET', BODIES, 'result', ARGV[3])
redis.call('HDEL', BODIES, 'end')
redis.call('HSET', S, 'state', 'finished', 'run', '', 'updated_ms', now, 'ended_ms', now)
changed('session', s.id, '-', 'finished')
if s.parent == '' then owe_result(s.id, now) end
tell_parent(s, ARGV[2], ARGV[3], now, ARGV[9])
session_stop(s)
return { 'done', 'finished' }
