-- include: request
-- include: ready
-- include: steps
-- include: budget
-- include: notices
-- include: ends
-- What a session's end means for its parent, and how a run ends. KEYS names the session. A request says who its `parent` was
-- when the caller looked, and `run`: the one that the caller holds, else it is the one that the session has.
local S, ITEMS, BODIES, QUEUE = KEYS[1], KEYS[1] .. ':items', KEYS[1] .. ':bodies', KEYS[1] .. ':queue'
local RUNNING, DISPATCH, WAITING = in_shard('running'), in_shard('queued'), in_shard('waiting')
local CLOSING, TIMERS, RESULTS = in_shard('closing'), in_shard('timers'), in_shard('results')
local STOPS, TOTALS, STREAM = in_shard('session-events'), in_shard('totals'), q.stream and in_shard(q.stream)
local RUN = q.run and in_shard('run:' .. q.run)
-- Of the parent; of the session itself where it has none.
local P, P_ITEMS, P_QUEUE

-- The parent that it was handed to since the caller looked, or nil: what the caller has signed and sealed is for another one.
local function new_parent(s)
  if s.parent ~= '' and s.parent ~= q.parent then return s.parent end
end

-- The parent's record of the session. It is read before anything is written: an end that the parent cannot be told of,
-- because its record is damaged, does not happen. Of one that was told before, it is not read: nobody is told twice.
local callback = nil

-- What the session has of the fields that an end takes from it, and from its texts; and how many items are queued.
local has, texts, queued

-- What is known of the session, once nothing hinders its end: of its own going on, where it `goes_on`.
local function session_facts(goes_on)
  local s, known = fields(S, 'limit_due_ms', 'review_due_ms', 'trouble', 'proof', 'attachments', 'id', 'agent', 'parent',
    'state', 'run', 'launched', 'delivered', 'dead', 'owed', 'questions', 'callback', 'parent_notified', 'task', 'runs',
    'message', 'stop_pending', 'root')
  has = { limit = known[1], review = known[2], said = known[3] or known[4] or known[5] }
  P = s.parent ~= '' and session_key(s.parent) or S
  P_ITEMS, P_QUEUE = P .. ':items', P .. ':queue'
  RUN = RUN or s.run ~= '' and in_shard('run:' .. s.run) or S
  queued = redis.call('ZCARD', QUEUE)
  check('ZCARD', RUNNING, DISPATCH, WAITING, TIMERS, s.parent ~= '' and P_QUEUE or RESULTS, not goes_on and CLOSING or nil)
  texts = redis.call('HMGET', BODIES, 'whole', 'end', 'result')
  check('HLEN', TOTALS)
  check('XLEN', STOPS, STREAM)
  if s.parent ~= '' and s.parent_notified ~= '1' then
    local fine, found = pcall(item, P_ITEMS, callback_of(s))
    if not fine then error('the record ' .. callback_of(s) .. ' of session ' .. s.parent .. ' is damaged') end
    callback = found
  end
  return s
end

-- By what the session had to have ended by now: limit | review, or nil. The sweep, which fails such sessions, may not have
-- noticed yet.
local function overdue(now)
  for _, timer in ipairs({ 'limit', 'review' }) do
    if has[timer] and count(has[timer]) <= now then return timer end
  end
end

-- Whether the end of a child may move its parent, so that the callback service is to look at it.
local affects_parent = true

-- Whether the run that ends carried messages, whose senders may wait until they are dealt with.
local had_messages = false

-- A parent that is busy is looked at when its run ends; one whose policy is not met, when it is. `counted`: as for `is_met`.
local function wakes(parent, record, counted)
  if record.awaited or CLOSED[parent.state] then return true end
  if parent.run ~= '' then return false end
  if parent.waiting == '' then return true end
  local group = record.group or ''
  local fine, met = pcall(function() return is_met(P, rule_of(cjson.decode(parent.waiting), group), group, counted) end)
  -- The callback service says what is wrong with a policy that cannot be read.
  return not fine or met
end

-- What the report of the end says beside its text: its structured part as JSON, and its message-id. A script that knows
-- them sets them before the end is told.
local END = { body = '', message = '' }

-- A session has ended with this text. A child's parent is told: its callback goes from owed to queued, or dies where nobody
-- can take it. `whole` refers to the whole of a large text, of which `text` is the beginning; `proof` is who says so;
-- `attachments` refers to what is attached to the answer.
local function tell_parent(s, status, text, now, proof, whole, attachments)
  proof = proof or ''
  local id, record = callback_of(s), callback
  local told = record and (record.state == 'owed' or record.state == 'none' and record.reports)
  if told and texts[3] then redis.call('HDEL', BODIES, 'result') end
  redis.call('HSET', BODIES, told and id or 'result', text)
  if END.body ~= '' then redis.call('HSET', BODIES, 'end', END.body) end
  redis.call('HSET', S, 'proof', proof, 'report', END.message, unpack(s.parent ~= '' and { 'parent_notified', '1' } or {}))
  if not record then return end -- a root, or a parent that was told of an earlier end
  record.status = status
  record.at_ms = now
  if record.state == 'none' and record.reports then
    -- The parent is its caller and has waited for nothing: the callback is launched by the end that it reports.
    record.state = 'owed'
    record.reports = nil
    count_callbacks(P, record.group, 'launched', 1)
    count_callbacks(P, record.group, 'owed', 1)
  end
  if record.state ~= 'owed' then
    if record.state == 'none' then
      record.over = true
      save(P_ITEMS, id, record)
    end
    return
  end
  local in_group = group_field(record.group, 'owed')
  local parent, known = fields(P, 'state', 'run', 'waiting', in_group, group_field(record.group, 'launched'),
    group_field(record.group, 'dead'), 'owed', 'seq')
  local reason, counted = nil, nil
  if CLOSED[parent.state] then
    reason = 'parent ' .. parent.state
  elseif status == 'failed' and record.on_failure == 'ignore' then
    reason = 'failure ignored by policy'
  elseif status == 'failed' and record.on_failure == 'fail' then
    reason = 'failed its parent by policy'
    -- Until the service has stopped it, nothing may resume it: it would come to an answer.
    redis.call('HSET', P, 'stop_pending', '1')
    redis.call('XADD', STOPS, '*', 'session', s.parent, 'parent', '', 'event', 'stop', 'state', 'failed',
      'reason', 'child ' .. s.id .. ' failed: ' .. text)
  end
  record.size = #text + #END.body
  record.whole = whole
  record.attachments = attachments
  record.body = END.body ~= '' and END.body or nil
  record.message = END.message ~= '' and END.message or nil
  record.proof = proof
  if reason then
    record.state = 'dead'
    record.reason = reason
    count_callbacks(P, record.group, 'owed', -1)
    count_callbacks(P, record.group, 'dead', 1)
    notice(P, 'dead', s.parent, '1', reason)
    if not CLOSED[parent.state] then redis.call('ZADD', WAITING, 'NX', now, s.parent) end
  else
    record.state = 'queued'
    record.seq = counter(P, 'seq', known[8]) + 1
    counted = { counter(P, in_group, known[4]) - 1, known[5], known[6] }
    redis.call('HSET', P, 'owed', counter(P, 'owed', known[7]) - 1, in_group, counted[1], 'seq', record.seq)
    redis.call('ZADD', P_QUEUE, score(record.priority, record.seq), id)
    redis.call('ZADD', WAITING, 'NX', now, s.parent)
  end
  save(P_ITEMS, id, record)
  affects_parent = wakes(parent, record, counted)
end

-- Everything in the session's queue and in the hands of its run is dead, with the reason.
local function bury(ids, reason)
  local dead = 0
  for _, id in ipairs(ids) do
    local record = readable_item(ITEMS, id)
    if record and (record.state == 'queued' or record.state == 'claimed') then
      mark_dead(ITEMS, id, record, reason)
      if record.kind == 'completion' then dead = dead + 1 end
    end
  end
  if dead > 0 then
    redis.call('HSET', S, 'dead', count(redis.call('HGET', S, 'dead')) + dead) -- which may be no number
    notice(S, 'dead', redis.call('HGET', S, 'id') or '', tostring(dead), reason)
  end
end

-- A root has ended: its caller is owed its result until that is settled. Exactly one of the two always says so, the
-- index or the field.
local function owe_result(id, now)
  redis.call('ZADD', RESULTS, 'NX', now, id)
  redis.call('HDEL', S, 'settled_ms')
  local now_is = fields(S, 'state', 'reason')
  if now_is.state ~= 'deleted' then notice(S, now_is.state, id, '', now_is.state == 'finished' and '' or now_is.reason) end
end

-- The session ends for good: `state` is failed, stopped or deleted.
local function close_session(s, state, reason, now, proof)
  redis.call('HSET', S, 'state', state, 'run', '', 'reason', reason, 'updated_ms', now, 'ended_ms', now)
  changed('session', s.id, '-', state)
  redis.call('HDEL', BODIES, 'whole', 'end')
  redis.call('HDEL', S, 'stop_pending', 'attachments')
  if not pcall(cjson.decode, redis.call('HGET', S, 'waiting') or '{}') then redis.call('HDEL', S, 'waiting') end
  if s.state == 'scheduled' then
    redis.call('HDEL', BODIES, 'envelope')
    redis.call('ZREM', TIMERS, 'submit|' .. s.id)
  end
  if count(s.questions) > 0 then close_approvals(S, ITEMS, 'session ' .. state .. ': ' .. reason) end
  bury(redis.call('ZRANGE', QUEUE, 0, -1), 'session ' .. state .. ': ' .. reason)
  redis.call('DEL', QUEUE)
  redis.call('ZREM', WAITING, s.id)
  redis.call('ZADD', CLOSING, now, s.id)
  if s.parent == '' then owe_result(s.id, now) end
  tell_parent(s, 'failed', reason, now, proof)
end

-- Every end of a run is followed by this: the callback service is told that the session stopped, in which `state`,
-- and how far its parent is, which it would have to ask for otherwise. It is not told what can move nobody; who
-- waits for an answer from outside hears it here, too.
local function session_stop(s, state)
  local parent = s.parent
  -- A review that has ended was done in time, whatever a user makes of its session later.
  if state ~= 'idle' then
    redis.call('ZREM', TIMERS, 'review|' .. s.id, 'limit|' .. s.id)
    if has.limit or has.review then redis.call('HDEL', S, 'review_due_ms', 'limit_due_ms') end
  end
  if state == 'idle' then
    -- Its parent has no part in this, and it itself has none while nothing is queued and no deadline is to be kept.
    parent = ''
    local deadline = string.find(redis.call('HGET', S, 'waiting') or '', 'deadline_ms', 1, true)
    -- Until there is a timer for it the sweep knows of it, too.
    if deadline then redis.call('ZADD', WAITING, 'NX', count(redis.call('HGET', S, 'updated_ms')), s.id) end
    local comes = redis.call('ZCARD', QUEUE) > 0 or deadline
    if not comes and not had_messages then return end
  elseif state == 'finished' and not affects_parent then
    return
  end
  local runs = parent ~= '' and redis.call('HGET', P, 'runs') or ''
  redis.call('XADD', STOPS, '*', 'session', s.id, 'parent', parent, 'event', 'session_stop', 'state', state,
    'runs', runs)
end

-- The envelopes that report the session's end. All that they say is in the records by this very step, and nobody waits
-- for the router to hear of it.
local function report(...)
  for _, envelope in ipairs({...}) do publish(STREAM, TOTALS, envelope, 'already_applied', '1') end
end

-- Agents that have ready runs again because a run of their tree ended, and whose workers are to be told.
local freed = {}

-- The run is counted no longer, if it was: one that is queued, that stands still in a call, or that is in the hands of
-- an external program, is not. `r` and `s` are the run and its session if the caller has read them.
local function stop_counting(now, r, s)
  r = r or fields(RUN, 'state', 'claim', 'standing')
  if r.state ~= 'running' or r.claim == 'external' or r.standing == '1' then return end
  s = s or fields(S, 'agent', 'root')
  freed = count_out(RUNNING, s.agent, s.root, now)
end

-- A run that was queued is nothing to take any more, ready or blocked. A key that somebody has spoilt hinders no end.
local function leave_queue(id)
  local s = fields(S, 'agent', 'root')
  pcall(leave_ready, beside(S, 'ready:' .. s.agent), beside(S, 'turns:' .. s.agent), id, s.root)
  leave_blocked(S, id, s.root)
end

-- How the present try ended (see lib/tries.lua), for the audit trail: without it a run whose worker was lost and one that
-- failed look the same there.
local ended_how

-- The run leaves the records of what is at work, and its steps go with it.
local function end_run(id, state, reason, now, r, s)
  if redis.call('ZREM', DISPATCH, id) == 1 then
    -- include: ready
    leave_queue(id)
  end
  stop_counting(now, r, s)
  redis.call('HSET', RUN, 'state', state, 'ended_ms', now, 'reason', reason)
  changed('run', session_of(S), id, state, ended_how and 'how=' .. ended_how)
  if redis.call('EXISTS', RUN .. ':steps', RUN .. ':reserved') > 0 then
    -- include: steps
    drop_steps(RUN)
    settle_open(S, RUN)
  end
  redis.call('ZREM', RUNNING, id)
end

-- A run ends without an answer and its session with it: `state` is failed, stopped or deleted.
local function fail_run(s, r, state, reason, now, proof)
  end_run(s.run, state == 'failed' and 'failed' or 'stopped', reason, now)
  local fine, carried = pcall(cjson.decode, r.items)
  -- Its end names what cannot be read; nobody needs that any more.
  if not fine then redis.call('HSET', RUN, 'items', '[]') end
  bury(fine and type(carried) == 'table' and carried or {}, 'resume ' .. state .. ': ' .. reason)
  close_session(s, state, reason, now, proof)
  session_stop(s, state)
end
