-- commit: the holder ends its run: answer, saved state, callbacks consumed, and what follows for the parent.
-- The envelope reports an end of the session; where the script needs one and got none it changes nothing and says so.
-- KEYS  1 session
-- ARGV  1 request: run, claim; parent; status: completed | failed | stopped | parked; attempts that the agent has; wait_ms until it
--         may be tried again; try: how it failed (see lib/tries.lua); provider: whose limits a parked run waits for, or ''; proof: that the answer, or the reason, is the agent's
--         waiting: its policy as JSON; last_effect that this try was told of, last_taken item
--         questions: what of those that a failed run carries: open: the holder will answer them with the failure
--         | answered: it has; else nobody will, the session fails with the run
--         left_out: keys of recorded steps that this try did not ask for; steps_failed: of the steps whose errors it failed
--         with, which another try executes again
--         whole: the reference, as JSON, to the large text of which the text is the beginning; memory: likewise, to that of the
--         conversation; attachments: references as a JSON object by name, kept where the session ends; attached: their SHA-256
--         keep_runs: how many keep what they found, so that the session can be forked there
--         digest: of the answer, if its parent is not to get it again that had it in a message
--         stream and message: of the envelope, its stream and id; told: how the parent is told of an answer,
--         completed | partial-success
--       2 text  3 saved state or ''  4 envelope or ''  5 what the report says beside its text, as JSON, or ''
-- Returns  {'done', session state, over '1' | '0', first '1' | '0', result owed '1' | '0', {agents whose workers are to be
--          told: this end lets a run of its tree begin}}
--          | {'lost'} | {'late', limit | review}: its time has passed, say that it has failed | {'envelope'} | {'retry', attempt} | {'parked', failures} | {'whole'}: it is gone, store it again
--          | {'parent', its id}: prove it to that one | {'questions', id, …}: answer them first
-- include: base
-- include: termination
-- include: past
local now, claim, status = clock(q.now), q.claim, q.status
local text, saved, envelope = ARGV[2], ARGV[3], ARGV[4]
local EFFECTS, LARGE_TEXTS = RUN .. ':effects', S .. ':large-texts'
local function large_text(sha256) return S .. ':whole:' .. sha256 end
local r = fields(RUN, 'id', 'state', 'claim', 'items', 'attempt', 'failures', 'stop', 'stop_state', 'standing', 'number')
if r.claim ~= claim then return { 'lost' } end
if r.state ~= 'running' then
  if not ENDED[r.state] then return { 'lost' } end
  local s = fields(S, 'state', 'parent')
  local owed = s.parent == '' and redis.call('ZSCORE', RESULTS, redis.call('HGET', S, 'id')) and '1' or '0'
  return { 'done', s.state, '0', '0', owed, {} }
end
-- The server has started again meanwhile and has lost what it had acknowledged: another try does it again.
if q.last_effect and redis.call('HEXISTS', EFFECTS, q.last_effect) == 0 or q.last_taken
  and not string.find(r.items, q.last_taken, 1, true) then return { 'lost' } end
local s = session_facts(status == 'completed')
if new_parent(s) then return { 'parent', s.parent } end
END.body, END.message = ARGV[5], q.message or ''
if status == 'stopped' and r.stop_state ~= '' or status == 'failed' and r.stop_state == 'deleted' then status = r.stop_state end

local late = status == 'completed' and overdue(now)
if late then return { 'late', late } end

if status == 'failed' and count(r.failures) + 1 < (q.attempts or 0) and r.stop == '' then
  -- include: tries
  local failures, wait_ms = count(r.failures) + 1, q.wait_ms or 0
  local reason = q.try.reason
  note_try(q.try, now, now + wait_ms)
  redis.call('HSET', RUN, 'failures', failures, 'attempts', q.attempts)
  if q.steps_failed then forget_steps(RUN, q.steps_failed) end
  queue_again(r.id, reason, 'attempt ' .. failures .. ' of ' .. q.attempts .. ' failed: ' .. reason, wait_ms, now)
  return { 'retry', failures }
end

-- The run frees its slot and is tried again when its time has come. It uses up no attempt; its steps stay.
if status == 'parked' and r.stop == '' and s.stop_pending == '' then
  -- include: tries
  local wait_ms = q.wait_ms or 0
  -- An item that the run parks for may have come since it looked.
  for name, value in pairs(object(RUN)) do
    local awaited = value == claim and string.match(name, '^awaits:(.*)$')
    if awaited and redis.call('ZSCORE', QUEUE, awaited) then wait_ms = 0 end
  end
  local reason = q.try.reason
  note_try(q.try, now, now + wait_ms)
  queue_again(r.id, reason, reason, wait_ms, now)
  return { 'parked', count(r.failures) }
end
if status == 'parked' then
  status = r.stop_state ~= '' and r.stop_state or 'stopped'
  if envelope == '' then return { 'envelope' } end
  if r.stop ~= '' then text = r.stop end
end

-- A run that fails at a question costs its asker the answer and nobody the session: the question is answered with the
-- failure, and whatever else the run carried goes to the next one.
local asked, held = {}, {}
if status == 'failed' and q.questions and r.stop == '' and s.stop_pending == '' then
  for _, id in ipairs(cjson.decode(r.items)) do
    local record = item(ITEMS, id)
    if record and record.state == 'claimed' then
      held[#held + 1] = { id, record }
      if record.question then asked[#asked + 1] = id end
    end
  end
end
if #asked > 0 then
  -- include: tries
  if q.questions == 'open' then return { 'questions', unpack(asked) } end
  if q.try then note_try(q.try, now, 0) end
  end_run(r.id, 'failed', text, now, r, s)
  for _, one in ipairs(held) do
    local id, record = one[1], one[2]
    if record.question then
      mark_dead(ITEMS, id, record, 'its run failed: ' .. text)
    else
      record.state, record.run, record.taken = 'queued', '', nil
      redis.call('ZADD', QUEUE, score(record.priority, record.seq), id)
      save(ITEMS, id, record)
    end
  end
  -- One that had given its answer before it was asked has given it still.
  local state = count(redis.call('HGET', S, 'ended_ms')) > 0 and 'finished' or 'idle'
  redis.call('HSET', S, 'state', state, 'run', '', 'updated_ms', now)
  changed('session', s.id, '-', state)
  redis.call('HDEL', S, 'trouble')
  redis.call('ZADD', WAITING, 'NX', now, s.id)
  had_messages = true
  session_stop(s, state)
  return { 'done', state, '0', '1', '0', freed }
end

if status ~= 'completed' then
  -- include: tries
  if envelope == '' then return { 'envelope' } end
  if q.try then note_try(q.try, now, 0) end
  fail_run(s, r, status, text, now, q.proof)
  report(envelope)
  return { 'done', status, '1', '1', s.parent == '' and '1' or '0', freed }
end

-- When the session is to be resumed although nothing is outstanding, in ms since the epoch, or nil: a rule that was
-- said in this very run waits for its deadline then. Where something is outstanding, that alone decides.
local function parked_until(rules, nothing_outstanding)
  local due = nil
  for _, rule in pairs(rules) do
    if rule.parks and nothing_outstanding then due = math.min(due or rule.deadline_ms, rule.deadline_ms) end
    if not nothing_outstanding then rule.parks = nil end
  end
  return due
end

-- Children of an earlier try that this one did not take up again are nobody's: dead, and stopped by the service.
-- Questions that it did not ask again are nobody's either: nobody would know what their reply is about.
-- What a recorded step did stays done: the step is not executed again.
local orphans, lost_owed, lost_queued, unasked = {}, 0, 0, {}
local left_out = {}
for _, key in ipairs(q.left_out or {}) do left_out[key] = true end
if count(r.attempt) > 1 then
  local function is_recorded(effect)
    local step = string.match(effect, '^.*|step:(.*)$')
    return step and not left_out[step] and redis.call('HEXISTS', RUN .. ':steps', 'h:' .. step) == 1
  end
  local effects = redis.call('HGETALL', EFFECTS)
  for i = 2, #effects, 2 do
    local effect = cjson.decode(effects[i])
    if effect.claim ~= claim and is_recorded(effects[i - 1]) then effect.claim = claim end
    if effect.asks and effect.claim ~= claim and redis.call('HEXISTS', S, 'question:' .. effect.item) == 1 then
      unasked[#unasked + 1] = effect.item
    end
    if effect.child and effect.claim ~= claim then
      local record = item(ITEMS, effect.callback)
      if record and (record.state == 'owed' or record.state == 'queued' or record.state == 'none') then
        orphans[#orphans + 1] = { effect.callback, record }
        if record.state == 'owed' then lost_owed = lost_owed + 1 end
        if record.state == 'queued' then lost_queued = lost_queued + 1 end
      end
    end
  end
end

local carried, delivered, of_group = {}, 0, {}
local ids = cjson.decode(r.items)
for i, found in ipairs(call_with('HMGET', ITEMS, ids)) do
  local id, record = ids[i], item_of(found)
  if record and record.state == 'claimed' then
    carried[#carried + 1] = { id, record }
    if record.kind == 'completion' then
      local name = group_field(record.group, 'delivered')
      delivered, of_group[name] = delivered + 1, (of_group[name] or 0) + 1
    end
  end
  if record and record.kind ~= 'completion' then had_messages = true end
end
local pending = count(s.launched) - count(s.delivered) - count(s.dead) - delivered - lost_owed - lost_queued
local waits = queued - lost_queued > 0
-- A session that is to be ended is not over by an answer: it waits for the service to end it.
local stop_pending = s.stop_pending ~= ''
local policy = q.waiting and cjson.decode(q.waiting) or nil
local parked = policy and parked_until(policy, pending <= 0 and not waits) or nil
local over = pending <= 0 and not waits and count(s.questions) - #unasked <= 0 and not stop_pending and not parked
if over and envelope == '' then return { 'envelope' } end
local whole, memory = q.whole and cjson.decode(q.whole), q.memory and cjson.decode(q.memory)
local needed = { unpack(q.attached or {}) }
if whole then needed[#needed + 1] = whole.sha256 end
if memory then needed[#needed + 1] = memory.sha256 end
for _, sha256 in ipairs(needed) do
  if redis.call('EXISTS', large_text(sha256)) == 0 then return { 'whole' } end
end

for _, one in ipairs(carried) do one[2].state = 'delivered' end
save_all(ITEMS, carried)
for name, more in pairs(of_group) do redis.call('HINCRBY', S, name, more) end
if delivered > 0 then redis.call('HINCRBY', S, 'delivered', delivered) end
for _, orphan in ipairs(orphans) do
  local id, record = orphan[1], orphan[2]
  if record.state == 'owed' then count_callbacks(S, record.group, 'owed', -1) end
  if record.state ~= 'none' then count_callbacks(S, record.group, 'dead', 1) end
  redis.call('ZREM', QUEUE, id)
  record.state = record.state == 'none' and 'none' or 'dead'
  record.reason = 'not taken up when its run was tried again'
  save(ITEMS, id, record)
  redis.call('XADD', STOPS, '*', 'session', record.child, 'parent', '', 'event', 'stop', 'reason', record.reason)
end
for _, id in ipairs(unasked) do
  redis.call('HDEL', S, 'question:' .. id)
  redis.call('HINCRBY', S, 'questions', -1)
  if is_approval(id) then close_approval(ITEMS, id, 'not asked for again when its run was tried again') end
  local record = item(P_ITEMS, id)
  if record and (record.state == 'queued' or record.state == 'asked') then
    mark_dead(P_ITEMS, id, record, 'not asked again when its run was tried again')
    redis.call('ZREM', P_QUEUE, id)
  end
end
end_run(r.id, 'completed', '', now, r, s)
if has.said then redis.call('HDEL', S, 'trouble', 'proof', 'attachments') end
if texts[1] or texts[2] then redis.call('HDEL', BODIES, 'whole', 'end') end
if not over then redis.call('HSET', BODIES, 'result', text) end
if whole then
  keep(large_text(whole.sha256), LARGE_TEXTS, whole.sha256)
  redis.call('HSET', BODIES, 'whole', q.whole)
end
if saved ~= '' then
  note_past(S, 'state', count(r.number))
  redis.call('HSET', BODIES, 'state', saved)
end
if memory then
  keep(large_text(memory.sha256), LARGE_TEXTS, memory.sha256)
  note_past(S, 'memory', count(r.number))
  redis.call('HSET', BODIES, 'memory', q.memory)
end
if saved ~= '' or memory then forget_past(S, LARGE_TEXTS, count(r.number), q.keep_runs or 0) end
if policy then
  -- include: base
  -- Every quorum that was said again begins to count now: what was delivered is not of it.
  local fresh = false
  for _, rule in pairs(policy) do
    if rule.mode == 'quorum' and not rule.base then
      rule.base, fresh = {}, true
    end
  end
  for name, number in pairs(fresh and object(S) or {}) do
    local group = string.match(name, '^group:(.*):delivered$')
    local rule = group and rule_of(policy, group)
    if rule and rule.base then rule.base[group] = count(number) end
  end
  redis.call('HSET', S, 'waiting', cjson.encode(policy), 'waiting_since', now)
end
if parked then redis.call('ZADD', TIMERS, parked, 'flush|' .. s.id) end
local state = over and 'finished' or 'idle'
redis.call('HSET', S, 'state', state, 'run', '', 'updated_ms', now, 'ended_ms', over and now or 0)
changed('session', s.id, '-', state)
local result_owed = over and s.parent == '' and '1' or '0'
if over then
  if result_owed == '1' then owe_result(s.id, now) end
  local attachments = nil
  if q.attachments then
    attachments = cjson.decode(q.attachments)
    for _, sha256 in ipairs(q.attached) do keep(large_text(sha256), LARGE_TEXTS, sha256) end
    redis.call('HSET', S, 'attachments', q.attachments)
  end
  tell_parent(s, q.told, text, now, q.proof, whole, attachments)
  local said = q.digest and s.parent ~= '' and redis.call('HGET', S, 'said:' .. q.digest)
  local earlier = said and item(P_ITEMS, said)
  if earlier and earlier.state == 'queued' then
    mark_dead(P_ITEMS, said, earlier, 'the result says the same')
    redis.call('ZREM', P_QUEUE, said)
  elseif earlier and callback then
    callback.said = said
    save(P_ITEMS, callback_of(s), callback)
  end
  report(envelope)
end
if r.stop ~= '' and (not over or r.stop_state == 'deleted') then
  -- It was asked to stop, and its agent was done first: nothing of it is to run any more.
  if not over then redis.call('HSET', S, 'stop_pending', '1') end
  redis.call('XADD', STOPS, '*', 'session', s.id, 'parent', '', 'event', 'stop', 'state', r.stop_state,
    'reason', r.stop)
end
session_stop(s, state)
return { 'done', state, over and '1' or '0', '1', result_owed, freed }
