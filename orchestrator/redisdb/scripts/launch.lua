-- launch: sessions begin: the children of a run, a root that somebody submits, or what a message of an external program
-- gives an agent to do; or the time of a scheduled one has come. Once for the key of the effect, the session's id, the
-- message; whatever is refused is refused before anything is written.
-- KEYS  1 session: the parent whose run launches children, else the one that begins
-- ARGV  1 request: launches, a list of: id, agent; facts: how many there are, names and values in turn, and at: the number
--         of its first octets (prompt, envelope or '', its task beside the prompt as JSON or '', facts); what else there is of
--         budget; time_limit_ms; stream: of the envelope; encrypted: the router cannot read which session it begins
--       and for children: run, claim, max_children, max_depth, max_sessions, max_runs; each launch has its
--         effect, priority, title; owed: its callback is; group, on_failure, on_close;
--         caller: none: nobody hears of it | the session of the same tree that it reports to and asks instead, which waits for
--         nothing: its callback is launched when the child ends
--       for a root: due_ms: when it is to begin; kept: the SHA-256 of large texts of the fork that it is
--       for a message: mark (see lib/mark.lua), message: its id; run; parent, if it is below a session; task: its task-id; first
--         message of its chain, most_messages; look_ms until the sweep looks at the run, review_ms: when a review has to be done;
--         sender, if it is none of the system's own; names_conversation: by its own message-id, which anybody may have
--         used before; replay: by the operator, whose conversation may be forgotten
--       for one whose time has come: seen: the mark of its message, mark_ms that it lives; stream
--       2… octets; of a fork also names and texts, in turn, with which it begins
-- Returns  for children {'launched', for each in turn 'created' | 'exists', its id}; the first that is refused ends it with
--          the name of a limit and its value | {'lost'}
--          for a root {'created', state, ''} | {'exists', state, agent, '1': with this prompt, '0': with another, '': it is gone}
--          | {'whole'}: a large text is gone, store it again
--          for a message {'started', run, agent, 'start', '1': tell workers of it | '0'} | {'duplicate'} | {'other'}: its id is
--          another message's | {'task', session that has the task-id} | {'closed', state of the parent, or 'removed'}
--          | {'chain'} | {'limit'} | {'stranger'}: its sender has no part in the conversation
--          for one whose time has come {'submitted'} | {'early'}: the timer stays | {'gone', state}: it was stopped, or began before
-- Complexity: O(launches).
-- include: base
-- include: request
-- include: new
local now, launches = clock(q.now), q.launches
local SESSION, TIMERS, TOTALS = KEYS[1], in_shard('timers'), in_shard('totals')

-- A session is there from now on, and its envelope is published unless it waits for its time. `above`: root, parent, depth
-- and budgets of what it is below; `run`: the one that it has already.
local function begin(l, above, state, run)
  local session, at, waits = session_key(l.id), l.at, state == 'scheduled'
  local prompt, envelope, task = unpack(ARGV, at, at + 2)
  local entry = ''
  if l.stream and not waits then
    entry = publish(in_shard(l.stream), TOTALS, envelope, unpack(l.encrypted and { 'session', l.id } or {}))
  end
  -- What is spent below a session counts against its budget.
  local budgets = l.budget and above.budgets .. ' ' .. l.id or above.budgets
  local facts = { unpack(ARGV, at + 3, at + 2 + l.facts) }
  if budgets ~= '' then facts[l.facts + 1], facts[l.facts + 2] = 'budgets', budgets end
  redis.call('HSET', session, 'id', l.id, 'root', above.root, 'parent', above.parent, 'depth', above.depth + 1,
    'state', state, 'run', run or '', 'runs', run and 1 or 0, 'launched', 0, 'delivered', 0, 'dead', 0, 'owed', 0,
    'questions', 0, 'seq', 0, 'created_ms', now, 'updated_ms', now, 'ended_ms', 0, 'entry', entry,
    'callback', l.owed and '1' or '0', unpack(facts))
  redis.call('HSET', session .. ':bodies', 'prompt', prompt, unpack(task ~= '' and { 'task', task } or {}))
  changed('session', l.id, '-', state, 'agent=' .. l.agent, 'parent=' .. above.parent)
  if l.budget then
    set_budget(session .. ':budget', l.budget)
    changed('budget', l.id, '-', 'limited', l.budget)
  end
  if not waits then limit_time(TIMERS, session, l.id, now, l.time_limit_ms or 0) end
end
local function above_all(l) return { root = l.id, parent = '', depth = -1, budgets = '' } end

-- What a parent knows of a child that it has launched.
local function callback(l, state)
  return { kind = 'completion', state = state, child = l.id, agent = l.agent, status = '', priority = l.priority, seq = 0,
    size = 0, run = '', reason = '', title = l.title or '', group = l.group or '', on_failure = l.on_failure or 'deliver',
    on_close = l.on_close, at_ms = now }
end
local function callback_id(l) return 'cb_' .. string.sub(l.id, 5) end

local function children()
  local RUN, ITEMS = in_shard('run:' .. q.run), SESSION .. ':items'
  if not held_run(RUN, q.claim) then return { 'lost' } end
  local names = {}
  for i, l in ipairs(launches) do names[i] = l.effect end
  local made = redis.call('HMGET', RUN .. ':effects', unpack(names))
  local p = fields(SESSION, 'id', 'root', 'depth', 'children', 'budgets')
  local TREE = in_shard('tree:' .. p.root)
  local depth, has, sessions = count(p.depth), count(p.children), redis.call('ZCARD', TREE)
  local runs = runs_of(sessions, session_key(p.root))
  local function refusal(more)
    if has + more >= q.max_children then return 'max_children', q.max_children end
    if depth + 1 > q.max_depth then return 'max_depth', q.max_depth end
    if sessions + more >= q.max_sessions then return 'max_sessions_per_tree', q.max_sessions end
    if runs + more >= q.max_runs then return 'max_runs_per_tree', q.max_runs end
  end

  -- Which are new, and which of those are refused, is known before anything is written.
  local answer, fresh, effects, asked, refused = { 'launched' }, {}, {}, {}, false
  local function note(effect, record)
    effects[#effects + 1], effects[#effects + 2] = effect, cjson.encode(record)
  end
  local function say(what, which)
    if refused then return end
    answer[#answer + 1], answer[#answer + 2] = what, tostring(which)
  end
  for i, l in ipairs(launches) do
    if made[i] then
      local effect = cjson.decode(made[i])
      effect.claim = q.claim
      note(l.effect, effect)
      say('exists', effect.child)
    elseif asked[l.effect] then
      say('exists', l.id)
    elseif not refused then
      asked[l.effect] = true
      local limit, value = refusal(#fresh)
      say(limit or 'created', value or l.id)
      if not limit then fresh[#fresh + 1] = l end
      refused = limit ~= nil
    end
  end

  -- Nor is anything of what they share damaged, so that none is published and then not written down.
  local function hears(l) return l.caller and l.caller ~= 'none' and l.caller end
  check('HLEN', ITEMS, TOTALS)
  check('ZCARD', TIMERS)
  local checked, new_keys = {}, {}
  for i, l in ipairs(fresh) do
    checked[l.stream] = checked[l.stream] or redis.call('XLEN', in_shard(l.stream))
    new_keys[2 * i - 1], new_keys[2 * i] = session_key(l.id), session_key(l.id) .. ':bodies'
    if hears(l) then check('HLEN', session_key(l.caller) .. ':items') end
  end
  if #fresh > 0 and redis.call('EXISTS', unpack(new_keys)) > 0 then check('HLEN', unpack(new_keys)) end

  local records, members, owed, in_group = {}, {}, 0, {}
  -- After whatever the tree has already, in the same millisecond too: a double has room for 4096 between two.
  local last = tonumber(redis.call('ZREVRANGE', TREE, 0, 0, 'WITHSCORES')[2])
  for _, l in ipairs(fresh) do
    local caller = hears(l)
    begin(l, { root = p.root, parent = caller or p.id, depth = depth, budgets = p.budgets }, 'pending')
    last = math.max(now, last and last + 1 / 4096 or now)
    members[#members + 1], members[#members + 2] = last, l.id
    local id, record = callback_id(l), callback(l, l.owed and 'owed' or 'none')
    records[#records + 1], records[#records + 2] = id, cjson.encode(record)
    item_changed(ITEMS, id, record)
    if caller then
      record.group = ''
      record.on_failure = 'deliver'
      record.inherited = true
      record.reports = true
      save(session_key(caller) .. ':items', id, record)
    end
    if l.owed then
      local group = l.group or ''
      owed = owed + 1
      in_group[group] = (in_group[group] or 0) + 1
    end
    note(l.effect, { child = l.id, callback = id, claim = q.claim })
  end
  if #fresh > 0 then
    redis.call('HSET', ITEMS, unpack(records))
    redis.call('ZADD', TREE, unpack(members))
    redis.call('HINCRBY', SESSION, 'children', #fresh)
  end
  if owed > 0 then
    redis.call('HINCRBY', SESSION, 'launched', owed)
    redis.call('HINCRBY', SESSION, 'owed', owed)
    for group, more in pairs(in_group) do
      redis.call('HINCRBY', SESSION, group_field(group, 'owed'), more)
      redis.call('HINCRBY', SESSION, group_field(group, 'launched'), more)
    end
  end
  if #effects > 0 then redis.call('HSET', RUN .. ':effects', unpack(effects)) end
  return answer
end

local function root()
  local l, BODIES = launches[1], SESSION .. ':bodies'
  local there = redis.call('HMGET', SESSION, 'state', 'agent')
  if there[1] then
    local prompt = redis.call('HGET', BODIES, 'prompt')
    return { 'exists', there[1], there[2], prompt and (prompt == ARGV[l.at] and '1' or '0') or '' }
  end
  local kept = q.kept or {}
  for _, sha256 in ipairs(kept) do
    if redis.call('EXISTS', SESSION .. ':whole:' .. sha256) == 0 then return { 'whole' } end
  end
  check('ZCARD', in_shard('tree:' .. l.id), in_shard('roots'), TIMERS)
  check('HLEN', BODIES, TOTALS, SESSION .. ':budget')
  check('XLEN', in_shard(l.stream))
  local waits = q.due_ms and q.due_ms > now
  local state = waits and 'scheduled' or 'pending'
  begin(l, above_all(l), state)
  local texts = l.at + 3 + l.facts
  if #ARGV >= texts then redis.call('HSET', BODIES, unpack(ARGV, texts)) end
  for _, sha256 in ipairs(kept) do keep(SESSION .. ':whole:' .. sha256, SESSION .. ':large-texts', sha256) end
  if waits then
    redis.call('HSET', SESSION, 'due_ms', q.due_ms, 'time_limit_ms', l.time_limit_ms or 0)
    redis.call('HSET', BODIES, 'envelope', ARGV[l.at + 1])
    redis.call('ZADD', TIMERS, q.due_ms, 'submit|' .. l.id)
  end
  redis.call('ZADD', in_shard('tree:' .. l.id), now, l.id)
  redis.call('ZADD', in_shard('roots'), now, l.id)
  return { 'created', state, '' }
end

-- Its task-delegation is published as it was signed. As a message that waited, it is told by its duplicate mark from one
-- that is too old.
local function due()
  local id, BODIES = session_of(SESSION), SESSION .. ':bodies'
  local s = fields(SESSION, 'state', 'due_ms', 'time_limit_ms')
  if s.state ~= 'scheduled' then
    redis.call('ZREM', TIMERS, 'submit|' .. id)
    return { 'gone', s.state }
  end
  if count(s.due_ms) > now then
    redis.call('ZADD', TIMERS, s.due_ms, 'submit|' .. id)
    return { 'early' }
  end
  local envelope = redis.call('HGET', BODIES, 'envelope')
  if not envelope then return redis.error_reply('ERR the task-delegation of scheduled session ' .. id .. ' is gone') end
  check('XLEN', in_shard(q.stream))
  check('HLEN', TOTALS)
  local entry = publish(in_shard(q.stream), TOTALS, envelope, 'attempt', '1', 'since', string.format('%.0f', now), 'session', id)
  redis.call('SET', in_shard(q.seen), string.match(entry, '[^:]*$'), 'PX', q.mark_ms)
  redis.call('HSET', SESSION, 'state', 'pending', 'entry', entry, 'updated_ms', now)
  changed('session', id, '-', 'pending')
  -- Its time limit begins with it, however late that is.
  limit_time(TIMERS, SESSION, id, now, count(s.time_limit_ms))
  redis.call('HDEL', BODIES, 'envelope')
  redis.call('ZREM', TIMERS, 'submit|' .. id)
  return { 'submitted' }
end

-- A message of an external program is a session and its first run in one step with the mark and the acknowledgement. Its
-- sender is no session of this ledger, or one that an external program runs: it is owed an envelope and no callback.
local function message()
  -- include: conversation
  -- include: mark
  -- include: ready
  local l, m = launches[1], q.mark
  local READY, TURNS = in_shard('ready:' .. l.agent), in_shard('turns:' .. l.agent)
  local RUN, QUEUED, CONVERSATION = in_shard('run:' .. q.run), in_shard('queued'), in_shard(m.conversation)
  local answer = answered(m)
  if answer then return answer end
  local s = fields(SESSION, 'id', 'agent', 'run')
  if s.id ~= '' then
    acknowledge(m)
    if redis.call('HGET', RUN, 'state') ~= 'queued' then return { 'duplicate' } end
    return { 'started', s.run, s.agent, 'start', must_wake(READY, TURNS, now) }
  end
  local party = takes_part(CONVERSATION, q.sender)
  if not party and not q.names_conversation then return { 'stranger' } end
  local taken = redis.call('HGET', CONVERSATION, 'task:' .. q.task)
  if taken then return { 'task', taken } end
  local above, PARENT = above_all(l), q.parent and session_key(q.parent)
  if PARENT then
    local p = fields(PARENT, 'id', 'root', 'depth', 'state', 'budgets')
    if p.id == '' then return { 'closed', 'removed' } end
    if CLOSED[p.state] then return { 'closed', p.state } end
    above = { root = p.root, parent = p.id, depth = count(p.depth), budgets = p.budgets }
    check('HLEN', PARENT .. ':items')
  end
  check('ZCARD', in_shard('tree:' .. above.root), in_shard('roots'), QUEUED, TIMERS, READY)
  check('HLEN', SESSION .. ':bodies', TURNS)
  check('LLEN', SESSION .. ':runs')
  local own = (q.sender and not q.replay) and q.message or ''
  local wrong = converse(CONVERSATION, q.first, q.most_messages or 0, own)
  if wrong ~= '' then return { wrong } end

  begin(l, above, 'pending', q.run)
  redis.call('ZADD', in_shard('tree:' .. above.root), now, l.id)
  if PARENT then
    save(PARENT .. ':items', callback_id(l), callback(l, 'none'))
    redis.call('HINCRBY', PARENT, 'children', 1)
  else
    redis.call('ZADD', in_shard('roots'), now, l.id)
  end
  redis.call('HSET', CONVERSATION, 'begun', '1', 'task:' .. q.task, l.id, 'agent:' .. l.agent, l.id)
  if party and q.sender then redis.call('HSET', CONVERSATION, 'party:' .. q.sender, '1') end
  -- The first launch by a message of that id stays, also when the id is used again.
  redis.call('HSETNX', CONVERSATION, 'launch:' .. q.message, l.id)
  if q.review_ms then end_by(TIMERS, SESSION, l.id, 'review', q.review_ms) end
  new_run(RUN, SESSION .. ':runs', q.run, l.id, 1, 'start', {}, now)
  redis.call('ZADD', QUEUED, now + q.look_ms, q.run)
  accept(m)
  make_ready(READY, TURNS, q.run, above.root, l.priority)
  return { 'started', q.run, l.agent, 'start', must_wake(READY, TURNS, now) }
end

if not launches then return due() end
if q.claim then return children() end
return q.mark and message() or root()
