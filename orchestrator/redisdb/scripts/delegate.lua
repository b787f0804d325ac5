-- delegate: a running parent launches children: each pending, its callback owed, its envelope published.
-- The effect key makes it one launch, however often the run is tried: the same key gives the same child.
-- KEYS  1 parent  2 parent's items  3 run  4 effects  5 tree  6 totals  7 root  8 timers
--       for each launch  1 child  2 child's bodies  3 stream  4 items of its caller, or of the parent
--       5 child's budget
-- ARGV  1 now or ''  2 claim  3 max children  4 max depth  5 max sessions in the tree  6 max runs in the tree
--       for each launch  1 effect key  2 child id  3 callback id  4 callback owed '1' | '0'  5 group  6 on_failure
--       7 on_close: what becomes of it when its parent is closed, or ''  8 priority  9 title  10 prompt
--       11 envelope  12 agent  13 correlation  14 message id  15 chain as JSON
--       16 caller: '' the parent | 'none' nobody hears of it | the session of the same tree that it reports to and asks
--       instead; a caller waits for nothing: its callback is launched when the child ends  17 the caller's agent
--       18 budget: what, limit, …, or ''  19 its task beside the prompt, as JSON, or ''  20 ms that it may take, or 0
--       21 '1': it is encrypted  22 the tasks that it waits for, as a JSON list, where its envelope cannot be read for them, or ''
--       23 proof of who gives it its task
-- Returns  {'launched', for each launch in turn 'created' | 'exists', child id}; the first one that is refused ends it
--          with the name of a limit and its value | {'lost'}
-- Complexity: O(launches).
-- include: base
-- include: new
local now, claim = clock(ARGV[1]), ARGV[2]
if not held_run(KEYS[3], claim) then return { 'lost' } end

local function launch(i)
  local k, a = 8 + (i - 1) * 5, 6 + (i - 1) * 23
  return { child = KEYS[k + 1], bodies = KEYS[k + 2], stream = KEYS[k + 3], caller_items = KEYS[k + 4], budget = KEYS[k + 5], effect = ARGV[a + 1], id = ARGV[a + 2],
    callback = ARGV[a + 3], owed = ARGV[a + 4], group = ARGV[a + 5], on_failure = ARGV[a + 6], on_close = ARGV[a + 7],
    priority = ARGV[a + 8], title = ARGV[a + 9], prompt = ARGV[a + 10], envelope = ARGV[a + 11], agent = ARGV[a + 12],
    correlation = ARGV[a + 13], message = ARGV[a + 14], chain = ARGV[a + 15],
    caller = ARGV[a + 16], caller_agent = ARGV[a + 17], limits = ARGV[a + 18],
    task = ARGV[a + 19], time_ms = ARGV[a + 20], encrypted = ARGV[a + 21], after = ARGV[a + 22],
    task_proof = ARGV[a + 23] }
end
local launches, names = {}, {}
for i = 1, (#KEYS - 8) / 5 do
  launches[i] = launch(i)
  names[i] = launches[i].effect
end
local made = redis.call('HMGET', KEYS[4], unpack(names))
local p = fields(KEYS[1], 'id', 'root', 'agent', 'depth', 'children', 'budgets')
local depth, children, sessions = count(p.depth) + 1, count(p.children), redis.call('ZCARD', KEYS[5])
local runs = runs_of(sessions, KEYS[7])

local function refusal(more)
  if children + more >= tonumber(ARGV[3]) then return 'max_children', ARGV[3] end
  if depth > tonumber(ARGV[4]) then return 'max_depth', ARGV[4] end
  if sessions + more >= tonumber(ARGV[5]) then return 'max_sessions_per_tree', ARGV[5] end
  if runs + more >= tonumber(ARGV[6]) then return 'max_runs_per_tree', ARGV[6] end
end

-- Which are new, and which of those are refused, is known before anything is written.
local answer, fresh, effects, asked = { 'launched' }, {}, {}, {}
local function note(effect, record)
  effects[#effects + 1] = effect
  effects[#effects + 1] = cjson.encode(record)
end
local refused = false
local function say(what, which)
  if refused then return end
  answer[#answer + 1] = what
  answer[#answer + 1] = which
end
for i, l in ipairs(launches) do
  if made[i] then
    local effect = cjson.decode(made[i])
    effect.claim = claim
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
check('HLEN', KEYS[2], KEYS[6])
check('ZCARD', KEYS[8])
for _, l in ipairs(fresh) do
  check('XLEN', l.stream)
  check('HLEN', l.caller_items)
end

local records, members, owed, in_group = {}, {}, 0, {}
-- After whatever the tree has already, in the same millisecond too: a double has room for 4096 between two.
local last = tonumber(redis.call('ZREVRANGE', KEYS[5], 0, 0, 'WITHSCORES')[2])
for _, l in ipairs(fresh) do
  local owes = l.owed == '1'
  local handed = l.caller ~= '' and l.caller ~= 'none'
  new_session(l.child, l.id, p.root, handed and l.caller or p.id, depth, 'pending', now, 'callback', l.owed,
    'priority', l.priority, 'title', l.title, 'delegator', handed and l.caller_agent or p.agent, 'agent', l.agent,
    'correlation', l.correlation, 'message', l.message, 'chain', l.chain, 'caller', l.caller,
    'task_proof', l.task_proof)
  redis.call('HSET', l.bodies, 'prompt', l.prompt)
  if l.task ~= '' then redis.call('HSET', l.bodies, 'task', l.task) end
  if l.encrypted ~= '' then redis.call('HSET', l.child, 'encrypted', '1') end
  if l.after ~= '' then redis.call('HSET', l.child, 'after', l.after) end
  limit_time(KEYS[8], l.child, l.id, now, l.time_ms)
  -- What is spent below a session counts against its budget.
  changed('session', l.id, '-', 'pending', 'agent=' .. l.agent, 'parent=' .. (handed and l.caller or p.id))
  if l.limits ~= '' then changed('budget', l.id, '-', 'limited', l.limits) end
  local budgets = set_budget(l.budget, l.limits) and p.budgets .. ' ' .. l.id or p.budgets
  if budgets ~= '' then redis.call('HSET', l.child, 'budgets', budgets) end
  last = math.max(now, last and last + 1 / 4096 or now)
  members[#members + 1] = last
  members[#members + 1] = l.id
  local record = { kind = 'completion', state = owes and 'owed' or 'none', child = l.id,
    agent = l.agent, status = '', priority = l.priority, seq = 0, size = 0, run = '', reason = '', title = l.title,
    group = l.group, on_failure = l.on_failure, on_close = l.on_close ~= '' and l.on_close or nil, at_ms = now }
  records[#records + 1] = l.callback
  records[#records + 1] = cjson.encode(record)
  item_changed(KEYS[2], l.callback, record)
  if handed then
    record.group = ''
    record.on_failure = 'deliver'
    record.inherited = true
    record.reports = true
    save(l.caller_items, l.callback, record)
  end
  if owes then
    owed = owed + 1
    in_group[l.group] = (in_group[l.group] or 0) + 1
  end
  note(l.effect, { child = l.id, callback = l.callback, claim = claim })
end
if #fresh > 0 then
  redis.call('HSET', KEYS[2], unpack(records))
  redis.call('ZADD', KEYS[5], unpack(members))
  redis.call('HINCRBY', KEYS[1], 'children', #fresh)
end
if owed > 0 then
  redis.call('HINCRBY', KEYS[1], 'launched', owed)
  redis.call('HINCRBY', KEYS[1], 'owed', owed)
  for group, more in pairs(in_group) do
    redis.call('HINCRBY', KEYS[1], group_field(group, 'owed'), more)
    redis.call('HINCRBY', KEYS[1], group_field(group, 'launched'), more)
  end
end
if #effects > 0 then redis.call('HSET', KEYS[4], unpack(effects)) end
for _, l in ipairs(fresh) do
  -- The router cannot read which session an encrypted envelope begins.
  local which = l.encrypted ~= '' and { 'session', l.id } or {}
  redis.call('HSET', l.child, 'entry', publish(l.stream, KEYS[6], l.envelope, unpack(which)))
end
return answer
