-- commit: the holder ends its run: answer, saved state, callbacks consumed, and what follows for the parent.
-- The envelope reports an end of the session; where the script needs one and got none it changes nothing and says so.
-- KEYS  as in lib/termination.lua, then 19 effects  20 whole  21 large_texts  22 memory
--       23… what is attached to the answer
-- ARGV  1 now or ''  2 claim id  3 status completed | failed | stopped | parked  4 text  5 saved state or ''
--       6 waiting policy or ''  7 envelope or ''  8 attempts the agent has  9 ms until it may be tried again
--       10 reference to the whole as JSON, where the text is its beginning, or ''
--       11 how it failed, as JSON (see lib/tries.lua), or ''
--       12 what of the questions that a failed run carries: 'open': the holder will answer them with the failure
--          | 'answered': it has | '': nobody will, the session fails with the run
--       13 keys of recorded steps that this try did not ask for, as a JSON list
--       14 keys of the steps whose errors it failed with, likewise: another try executes them again
--       15 proof that the answer, or the reason, is the agent's
--       16 reference to the memory of the conversation as JSON, or ''
--       17 digest of the answer, if its parent is not to get it again that had it in a message, or ''
--       18 runs that keep what they found, so that the session can be forked there
--       19 references to what is attached, as a JSON object by name, or ''; kept where the session ends
--       20 what the report says beside its text, as JSON, or ''  21 message-id of the envelope, or ''
--       22 how the parent is told of an answer: completed | partial-success
--       23 the last effect that this try was told of, or ''
-- Returns  {'done', session state, over '1' | '0', first '1' | '0', result owed '1' | '0', {agents (or lanes of them) whose workers are to be
--          told: this end lets a run of its tree begin}}
--          | {'lost'} | {'late', limit | review}: its time has passed, say that it has failed | {'envelope'} | {'retry', attempt} | {'parked', failures} | {'whole'}: it is gone, store it again
--          | {'parent', its id}: pass that parent's keys | {'questions', id, …}: answer them first
-- include: base
-- include: termination
-- include: tries
-- include: past
local now = clock(ARGV[1])
local claim, status, text = ARGV[2], ARGV[3], ARGV[4]
local r = fields(RUN, 'id', 'state', 'claim', 'items', 'attempt', 'failures', 'stop', 'stop_state', 'standing', 'number')
if r.claim ~= claim then return { 'lost' } end
if r.state ~= 'running' then
  if not ENDED[r.state] then return { 'lost' } end
  local s = fields(S, 'state', 'parent')
  local owed = s.parent == '' and redis.call('ZSCORE', RESULTS, redis.call('HGET', S, 'id')) and '1' or '0'
  return { 'done', s.state, '0', '0', owed, {} }
end
-- The server has started again meanwhile and has lost what it had acknowledged: another try does it again.
if ARGV[23] ~= '' and redis.call('HEXISTS', KEYS[19], ARGV[23]) == 0 then return { 'lost' } end
local s = session_facts()
if new_parent(s) then return { 'parent', s.parent } end
END.body, END.message = ARGV[20], ARGV[21]
if status == 'stopped' and r.stop_state ~= '' then status = r.stop_state end
if status == 'failed' and r.stop_state == 'deleted' then status = 'deleted' end

local late = status == 'completed' and overdue(now)
if late then return { 'late', late } end

if status == 'failed' and count(r.failures) + 1 < tonumber(ARGV[8]) and r.stop == '' then
  local failures, wait_ms = count(r.failures) + 1, tonumber(ARGV[9])
  local reason = cjson.decode(ARGV[11]).reason
  note_try(ARGV[11], now, now + wait_ms)
  redis.call('HSET', RUN, 'failures', failures, 'attempts', ARGV[8])
  if ARGV[14] ~= '[]' then forget_steps(RUN, cjson.decode(ARGV[14])) end
  queue_again(r.id, reason, 'attempt ' .. failures .. ' of ' .. ARGV[8] .. ' failed: ' .. reason, wait_ms, now)
  return { 'retry', failures }
end

-- Whether an item that the run parks for has come since it looked.
local function is_there()
  local facts = redis.call('HGETALL', RUN)
  for i = 1, #facts, 2 do
    local awaited = facts[i + 1] == claim and string.match(facts[i], '^awaits:(.*)$')
    if awaited and redis.call('ZSCORE', QUEUE, awaited) then return true end
  end
  return false
end

-- The run frees its slot and is tried again when its time has come. It uses up no attempt; its steps stay.
if status == 'parked' and r.stop == '' and s.stop_pending == '' then
  local wait_ms = is_there() and 0 or tonumber(ARGV[9])
  local reason = cjson.decode(ARGV[11]).reason
  note_try(ARGV[11], now, now + wait_ms)
  queue_again(r.id, reason, reason, wait_ms, now)
  return { 'parked', count(r.failures) }
end
if status == 'parked' then
  status = r.stop_state ~= '' and r.stop_state or 'stopped'
  if ARGV[7] == '' then return { 'envelope' } end
  if r.stop ~= '' then text = r.stop end
end

-- A run that fails at a question costs its asker the answer and nobody the session: the question is answered with the
-- failure, and whatever else the run carried goes to the next one.
local asked = {}
if status == 'failed' and ARGV[12] ~= '' and r.stop == '' and s.stop_pending == '' then
  for _, id in ipairs(cjson.decode(r.items)) do
    local record = item(ITEMS, id)
    if record and record.state == 'claimed' and record.question then asked[#asked + 1] = id end
  end
end
if #asked > 0 then
  if ARGV[12] == 'open' then return { 'questions', unpack(asked) } end
  if ARGV[11] ~= '' then note_try(ARGV[11], now, 0) end
  end_run(r.id, 'failed', text, now, r, s)
  for _, id in ipairs(cjson.decode(r.items)) do
    local record = item(ITEMS, id)
    if record and record.state == 'claimed' then
      if record.question then
        mark_dead(ITEMS, id, record, 'its run failed: ' .. text)
      else
        record.state = 'queued'
        record.run = ''
        record.taken = nil
        redis.call('ZADD', QUEUE, score(record.priority, record.seq), id)
        save(ITEMS, id, record)
      end
    end
  end
  -- One that had given its answer before it was asked has given it still.
  local state = count(redis.call('HGET', S, 'ended_ms')) > 0 and 'finished' or 'idle'
  redis.call('HSET', S, 'state', state, 'run', '', 'updated_ms', now)
  changed('session', s.id, '-', state)
  redis.call('HDEL', S, 'trouble')
  redis.call('ZADD', WAITING, 'NX', now, s.id)
  had_messages = true
  session_stop(s)
  return { 'done', state, '0', '1', '0', freed }
end

if status ~= 'completed' then
  if ARGV[7] == '' then return { 'envelope' } end
  if ARGV[11] ~= '' then note_try(ARGV[11], now, 0) end
  fail_run(s, r, status, text, now, ARGV[15])
  report(ARGV[7])
  return { 'done', status, '1', '1', s.parent == '' and '1' or '0', freed }
end

-- In a waiting policy every quorum that was said again begins to count now: what was delivered is not of it.
local function from_here_on(policy)
  local fresh = false
  for _, rule in pairs(policy) do
    if rule.mode == 'quorum' and not rule.base then
      rule.base = {}
      fresh = true
    end
  end
  if not fresh then return end
  local facts = redis.call('HGETALL', S)
  for i = 1, #facts, 2 do
    local group = string.match(facts[i], '^group:(.*):delivered$')
    local rule = group and rule_of(policy, group)
    if rule and rule.base then rule.base[group] = count(facts[i + 1]) end
  end
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
for _, key in ipairs(cjson.decode(ARGV[13])) do left_out[key] = true end
local function is_recorded(effect)
  local step = string.match(effect, '^.*|step:(.*)$')
  return step and not left_out[step] and redis.call('HEXISTS', RUN .. ':steps', 'h:' .. step) == 1
end
if count(r.attempt) > 1 then
  local effects = redis.call('HGETALL', KEYS[19])
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
for _, id in ipairs(cjson.decode(r.items)) do
  local record = item(ITEMS, id)
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
local waits = redis.call('ZCARD', QUEUE) - lost_queued > 0
-- A session that is to be ended is not over by an answer: it waits for the service to end it.
local stop_pending = s.stop_pending ~= ''
local policy = ARGV[6] ~= '' and cjson.decode(ARGV[6]) or nil
local parked = policy and parked_until(policy, pending <= 0 and not waits) or nil
local over = pending <= 0 and not waits and count(s.questions) - #unasked <= 0 and not stop_pending and not parked
if over and ARGV[7] == '' then return { 'envelope' } end
if ARGV[10] ~= '' and redis.call('EXISTS', KEYS[20]) == 0 then return { 'whole' } end
if ARGV[16] ~= '' and redis.call('EXISTS', KEYS[22]) == 0 then return { 'whole' } end
for k = 23, #KEYS do
  if redis.call('EXISTS', KEYS[k]) == 0 then return { 'whole' } end
end

for _, one in ipairs(carried) do
  one[2].state = 'delivered'
  save(ITEMS, one[1], one[2])
end
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
redis.call('HDEL', S, 'trouble', 'proof', 'attachments')
redis.call('HSET', BODIES, 'result', text)
redis.call('HDEL', BODIES, 'whole', 'end')
local whole = nil
if ARGV[10] ~= '' then
  whole = cjson.decode(ARGV[10])
  keep(KEYS[20], KEYS[21], whole.sha256)
  redis.call('HSET', BODIES, 'whole', ARGV[10])
end
if ARGV[5] ~= '' then
  note_past(S, 'state', count(r.number))
  redis.call('HSET', BODIES, 'state', ARGV[5])
end
if ARGV[16] ~= '' then
  keep(KEYS[22], KEYS[21], cjson.decode(ARGV[16]).sha256)
  note_past(S, 'memory', count(r.number))
  redis.call('HSET', BODIES, 'memory', ARGV[16])
end
if ARGV[5] ~= '' or ARGV[16] ~= '' then forget_past(S, KEYS[21], count(r.number), tonumber(ARGV[18])) end
if policy then
  from_here_on(policy)
  redis.call('HSET', S, 'waiting', cjson.encode(policy), 'waiting_since', now)
end
if parked then redis.call('ZADD', TIMERS, parked, 'flush|' .. s.id) end
local state = over and 'finished' or 'idle'
redis.call('HSET', S, 'state', state, 'run', '', 'updated_ms', now, 'ended_ms', over and now or 0)
changed('session', s.id, '-', state)
local result_owed = '0'
if over then
  if s.parent == '' then
    owe_result(s.id, now)
    result_owed = '1'
  end
  local attachments = nil
  if ARGV[19] ~= '' then
    attachments = cjson.decode(ARGV[19])
    for k = 23, #KEYS do keep(KEYS[k], KEYS[21], string.match(KEYS[k], '[^:]*$')) end
    redis.call('HSET', S, 'attachments', ARGV[19])
  end
  tell_parent(s, ARGV[22], text, now, ARGV[15], whole, attachments)
  local said = ARGV[17] ~= '' and s.parent ~= '' and redis.call('HGET', S, 'said:' .. ARGV[17])
  local earlier = said and item(P_ITEMS, said)
  if earlier and earlier.state == 'queued' then
    mark_dead(P_ITEMS, said, earlier, 'the result says the same')
    redis.call('ZREM', P_QUEUE, said)
  elseif earlier then
    if callback then
      callback.said = said
      save(P_ITEMS, callback_of(s), callback)
    end
  end
  report(ARGV[7])
end
if r.stop ~= '' and (not over or r.stop_state == 'deleted') then
  -- It was asked to stop, and its agent was done first: nothing of it is to run any more.
  if not over then redis.call('HSET', S, 'stop_pending', '1') end
  redis.call('XADD', STOPS, '*', 'session', s.id, 'parent', '', 'event', 'stop', 'state', r.stop_state,
    'reason', r.stop)
end
session_stop(s)
return { 'done', state, over and '1' or '0', '1', result_owed, freed }
