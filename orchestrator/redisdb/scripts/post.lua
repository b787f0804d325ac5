-- post: put a message into a session's queue: a question, a reply, a prompt, a report; or before a person, in the session's
-- own records: a question to the user, an approval. Once for its id. An effect of a run is made under its claim and once for
-- its key; a message that the router takes is marked and acknowledged in the same step.
-- KEYS  1 session
-- ARGV  1 request: id, record; what else there is of
--         opens: the session that asks, of which the question is open from now on; answers: the question that it replies to
--         person: the state in which it waits for a person, asked | delivered
--         run, claim, effect, speaker: the run whose effect this is, its claim, the key of the effect, the session
--         mark: see lib/mark.lua
--         stream: of the envelope; speaker: the session whose facts these are
--         due_ms: when it is given up or decided by default, open_ms: how long it may stay open
--         conversation, most_messages, most_open, most_runs: what may be refused, and from which number on
--         digest: of a message that the speaker's result may repeat
--       2 text  3 envelope or ''  4… field, value, … of the speaker: how far it is
-- Returns  {'queued', id} | {'done'}: it was a router's | {'exists', id, '1': with this text, '0': with another, '': its text is gone}
--          | {'lost'} | {'duplicate'} | {'other'}: the message's id is another message's
--          | {'unknown'} | {'closed', state} | {'answered'}: it has its reply already
--          | {'person'}: it answers an approval, which only a person does
--          | {'whole'}: the text that the record refers to is gone, store it again | {'limit', name, limit}
-- Complexity: O(log(queue)).
-- include: base
-- include: request
-- include: mark
-- include: notices
local now, id, record, text, envelope = clock(q.now), q.id, q.record, ARGV[2], ARGV[3]
local SESSION, ITEMS, BODIES, QUEUE = KEYS[1], KEYS[1] .. ':items', KEYS[1] .. ':bodies', KEYS[1] .. ':queue'
local WAITING, EVENTS, TIMERS = in_shard('waiting'), in_shard('session-events'), in_shard('timers')
local APPROVALS, TOTALS, STREAM = in_shard('approvals'), in_shard('totals'), q.stream and in_shard(q.stream)
local RUN, SPEAKER = q.run and in_shard('run:' .. q.run), q.speaker and session_key(q.speaker)
local name, by_user = session_of(SESSION), not q.run and not q.mark

local answer = q.mark and answered(q.mark)
if answer then return answer end
if q.run and not held_run(RUN, q.claim) then return { 'lost' } end

-- What an earlier try of the run did, this one takes up.
local function note_effect(effect)
  effect.claim = q.claim
  redis.call('HSET', RUN .. ':effects', q.effect, cjson.encode(effect))
end
local made = q.run and redis.call('HGET', RUN .. ':effects', q.effect)
if made then
  local effect = cjson.decode(made)
  note_effect(effect)
  return { 'exists', effect.item, '' }
end
if redis.call('HEXISTS', ITEMS, id) == 1 then
  if q.mark then
    accept(q.mark)
    return { 'done' }
  end
  local known = redis.call('HGET', BODIES, id)
  return { 'exists', id, known and (known == text and '1' or '0') or '' }
end

-- The limit that refuses it. A reply is never refused.
local function limit()
  if q.most_open and count(redis.call('HGET', SESSION, 'questions')) >= q.most_open then
    return 'max_open_questions', q.most_open
  end
  local said = q.most_messages and not q.answers and redis.call('HGET', in_shard('conversation:' .. q.conversation), 'count')
  if said and count(said) > q.most_messages then return 'conversation_max_messages', q.most_messages end
  local root = q.most_runs and redis.call('HGET', SESSION, 'root')
  if root and runs_of(redis.call('ZCARD', in_shard('tree:' .. root)), session_key(root)) >= q.most_runs then
    return 'max_runs_per_tree', q.most_runs
  end
end
local what, most = limit()
if what then return { 'limit', what, tostring(most) } end
local whole = record.whole and SPEAKER .. ':whole:' .. record.whole.sha256
if whole and redis.call('EXISTS', whole) == 0 then return { 'whole' } end

-- Completions are made with the delegation that owes them, a prompt is a user's, and a reply closes a question: any other
-- way would let a program speak for the system.
local function made_as_its_kind(kind)
  if kind == 'completion' or kind == 'aggregated' then return false end
  if kind == 'prompt' then return by_user end
  return (kind == 'reply') == (q.answers ~= nil)
end
if not made_as_its_kind(record.kind) then
  return redis.error_reply('ERR an item of kind ' .. record.kind .. ' is not made in this way')
end
check('ZCARD', QUEUE, WAITING, TIMERS)
if is_approval(id) or q.answers and is_approval(q.answers) then check('ZCARD', APPROVALS) end
check('HLEN', BODIES, TOTALS)
check('XLEN', EVENTS, STREAM)
local s = fields(SESSION, 'id', 'state', 'run')
if s.id == '' then return { 'unknown' } end
if CLOSED[s.state] then return { 'closed', s.state } end
if q.answers and is_approval(q.answers) and not by_user then return { 'person' } end
if q.answers and redis.call('HDEL', SESSION, 'question:' .. q.answers) == 0 then return { 'answered' } end

-- A run that waits for this answer without its slot goes on with the next sweep, and not when it would have looked again.
local function wake(run)
  local r = fields(run, 'state', 'awaits:' .. id)
  if r.state ~= 'queued' or r['awaits:' .. id] == '' then return end
  redis.call('HSET', run, 'not_before', 0, 'wait', 0)
  redis.call('ZADD', in_shard('queued'), now, s.run)
end
if q.answers then
  redis.call('HINCRBY', SESSION, 'questions', -1)
  if is_approval(q.answers) then
    close_approval(ITEMS, q.answers)
    changed('approval', name, q.answers, 'answered')
  end
  if s.run ~= '' then wake(in_shard('run:' .. s.run)) end
end
if q.opens then
  redis.call('HSET', session_key(q.opens), 'question:' .. id, name)
  redis.call('HINCRBY', session_key(q.opens), 'questions', 1)
end

record.state = q.person or 'queued'
record.seq = redis.call('HINCRBY', SESSION, 'seq', 1)
record.size = #text + #(record.context or '') + #(record.body or '')
record.at_ms = now
-- It is in a person's hands from now on, and no run is given it.
if record.state == 'delivered' then record.run = q.run end
save(ITEMS, id, record)
redis.call('HSET', BODIES, id, text)
if q.person then
  redis.call('HSET', SESSION, 'updated_ms', now)
  if is_approval(id) then redis.call('ZADD', APPROVALS, now, id) end
  notice(SESSION, is_approval(id) and 'approval' or 'question', name, id, '')
else
  redis.call('ZADD', QUEUE, score(record.priority, record.seq), id)
  redis.call('ZADD', WAITING, 'NX', now, name)
  redis.call('XADD', EVENTS, '*', 'session', name, 'parent', '', 'event', 'put')
end
local due = q.due_ms or q.open_ms and now + q.open_ms
if due then redis.call('ZADD', TIMERS, due, (is_approval(id) and 'approval|' or 'question|') .. id) end
if whole then keep(whole, SPEAKER .. ':large-texts', record.whole.sha256) end
if q.run then note_effect({ item = id, asks = q.opens ~= nil }) end
if STREAM then publish(STREAM, TOTALS, envelope, unpack(q.person and { 'already_applied', '1' } or {})) end
if q.digest then redis.call('HSET', SPEAKER, 'said:' .. q.digest, id) end
if #ARGV > 3 then redis.call('HSET', SPEAKER, 'updated_ms', now, unpack(ARGV, 4)) end
if q.mark then
  accept(q.mark)
  return { 'done' }
end
return { 'queued', id }
