-- Whether an item of that kind may be made so. Completions are made with the delegation that owes them, a prompt is
-- a user's, and a reply closes a question: any other way would let a program speak for the system.
local function made_as_its_kind(kind, answers, by_user)
  if kind == 'completion' or kind == 'aggregated' then return false end
  if kind == 'prompt' then return by_user == true end
  return (kind == 'reply') == (answers ~= '')
end

-- Write down an item that is new, with its text, in the state that it has.
local function add_item(session, items, bodies, now, id, record, text)
  record.seq = redis.call('HINCRBY', session, 'seq', 1)
  record.size = #text + #(record.context or '') + #(record.body or '')
  record.at_ms = now
  save(items, id, record)
  redis.call('HSET', bodies, id, text)
end

-- The question is open from now on: a session has asked another one, or a person.
local function open_question(asker, id, asked)
  redis.call('HSET', asker, 'question:' .. id, asked)
  redis.call('HINCRBY', asker, 'questions', 1)
end

-- The limit that refuses a session one more question to a person; nil: it has fewer open, approvals included.
local function limit_of_open(asker, most)
  if count(redis.call('HGET', asker, 'questions')) >= tonumber(most) then return { 'limit', 'max_open_questions', most } end
end

-- Put something that is not a completion into a session's queue.
-- KEYS  1 session  2 items  3 bodies  4 queue  5 waiting  6 session_events  7 totals  8 stream  9 session@speaker
-- `opens`: the speaker asks a question that stays open until its reply; `answers`: the question it replies to;
-- `by_user`: no agent and no program says it.
-- Returns a refusal ('unknown', 'closed' with the state, 'answered', 'person': only a person answers it), or nil and the sequence number.
local function place(now, id, record, text, opens, answers, by_user)
  if not made_as_its_kind(record.kind, answers, by_user) then
    return redis.error_reply('ERR an item of kind ' .. record.kind .. ' is not made in this way')
  end
  check('ZCARD', KEYS[4], KEYS[5])
  check('HLEN', KEYS[3], KEYS[7])
  check('XLEN', KEYS[6], KEYS[8])
  local s = fields(KEYS[1], 'id', 'state')
  if s.id == '' then return { 'unknown' } end
  if CLOSED[s.state] then return { 'closed', s.state } end
  if answers ~= '' then
    if is_approval(answers) and by_user ~= true then return { 'person' } end
    if redis.call('HDEL', KEYS[1], 'question:' .. answers) == 0 then return { 'answered' } end
    redis.call('HINCRBY', KEYS[1], 'questions', -1)
    if is_approval(answers) then
      close_approval(KEYS[2], answers)
      changed('approval', session_of(KEYS[2]), answers, 'answered')
    end
  end
  if opens == '1' then open_question(KEYS[9], id, s.id) end
  record.state = 'queued'
  add_item(KEYS[1], KEYS[2], KEYS[3], now, id, record, text)
  redis.call('ZADD', KEYS[4], score(record.priority, record.seq), id)
  redis.call('ZADD', KEYS[5], 'NX', now, s.id)
  redis.call('XADD', KEYS[6], '*', 'session', s.id, 'parent', '', 'event', 'put')
  return nil, record.seq
end
