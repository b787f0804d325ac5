-- flush: when a session is not busy and its waiting policy is met, one new run claims what is queued,
-- bounded by count and bytes; the rest follows with the next run. Sent again, it answers the same while no worker has it.
-- A deadline makes a run, too, even when nothing has come: the run's field `overdue` names the groups it was for.
-- KEYS  1 session
-- ARGV  1 request: run: its id, and number; max_items, max_bytes; look_ms until the sweep looks at it; ttl_ms of
--         a tree at rest; call: one that is sent again, as its answer was lost, has the same
-- Returns  {'run', run id, agent, cause, '1' if more is queued, '1': tell workers of it | '0'} | {'busy', run} | {'empty'}
--          | {'waits', due in ms since the epoch or '0'} | {'closed', state} | {'number', runs so far}
-- include: base
-- include: request
-- include: new
-- include: ready
local ITEMS, QUEUE, RUNS = KEYS[1] .. ':items', KEYS[1] .. ':queue', KEYS[1] .. ':runs'
local RUN, QUEUED, WAITING, TIMERS = in_shard('run:' .. q.run), in_shard('queued'), in_shard('waiting'), in_shard('timers')
local now = clock(q.now)
local s = fields(KEYS[1], 'id', 'agent', 'state', 'run', 'runs', 'waiting', 'window_until', 'launched', 'delivered',
  'dead', 'questions', 'owed', 'stop_pending', 'seq', 'unready', 'root', 'priority', 'flushed')
if s.id == '' then return { 'closed', 'unknown' } end
if s.run ~= '' then
  local r = s.flushed == q.call and fields(in_shard('run:' .. s.run), 'state', 'cause') or {}
  -- Sent again, as its answer was lost: the caller has told nobody.
  return r.state == 'queued' and { 'run', s.run, s.agent, r.cause, '0', '1' } or { 'busy', s.run }
end
if CLOSED[s.state] then
  redis.call('ZREM', WAITING, s.id)
  return { 'closed', s.state }
end
-- Its first run is the router's to make: what is said to it meanwhile comes after its task.
-- A session that a user or a child's failure ends is not resumed meanwhile.
if s.state == 'pending' or s.state == 'scheduled' or s.stop_pending ~= '' then return { 'waits', '0' } end
-- A guess at how many runs it had would give the next one the id of an earlier one.
if not tonumber(s.runs) then return redis.error_reply('ERR session ' .. s.id .. ' does not say how many runs it had') end
if count(s.runs) + 1 ~= q.number then return { 'number', s.runs } end

-- The waiting policy of a group: any | all | quorum; a deadline or an unreachable quorum meets it too.
-- What a group has no rule for is under the rule of the group ''.
local policy = s.waiting ~= '' and cjson.decode(s.waiting) or {}

-- Deadlines that have passed while callbacks of their groups are outstanding, and the next deadline.
local function missing(group)
  if group ~= '' then return count(redis.call('HGET', KEYS[1], group_field(group, 'owed'))) end
  local others = 0
  for name in pairs(policy) do
    if name ~= '' then others = others + missing(name) end
  end
  return count(s.owed) - others
end
local overdue, is_overdue, wake_at, kept = {}, {}, 0, {}
for group, rule in pairs(policy) do
  local due = tonumber(rule.deadline_ms)
  -- What ends the wait of a session that had nothing outstanding ends its deadline, too.
  if due and (rule.parks or missing(group) <= 0) then kept[#kept + 1] = group end
  if due and (rule.parks or missing(group) > 0) then
    if now >= due then
      overdue[#overdue + 1] = group
      is_overdue[group] = true
    elseif wake_at == 0 or due < wake_at then
      wake_at = due
    end
  end
end
table.sort(overdue)

-- One new run carries what was `chosen`: pairs of an item's id and its record.
local function make_run(chosen, cause, more)
  local ready, turns = in_shard('ready:' .. s.agent), in_shard('turns:' .. s.agent)
  local ROOT = session_key(s.root ~= '' and s.root or s.id)
  check('ZCARD', QUEUED, WAITING, TIMERS, ready)
  check('HLEN', RUN, ROOT, turns)
  check('LLEN', RUNS)
  local ids = {}
  for i, pair in ipairs(chosen) do
    ids[i], pair[2].state, pair[2].run = pair[1], 'claimed', q.run
  end
  save_all(ITEMS, chosen)
  call_with('ZREM', QUEUE, ids)
  new_run(RUN, RUNS, q.run, s.id, q.number, cause, ids, now)
  redis.call('HINCRBY', ROOT, 'resumes', 1)
  redis.call('HSET', KEYS[1], 'run', q.run, 'runs', q.number, 'flushed', q.call, 'updated_ms', now)
  redis.call('HDEL', KEYS[1], 'window_until', 'unready')
  redis.call('ZREM', TIMERS, 'flush|' .. s.id, 'expire|' .. s.id)
  -- Below a root at rest, too, its tree is not.
  redis.call('ZADD', TIMERS, 'XX', now + (q.ttl_ms or 0), 'expire|' .. s.root)
  redis.call('ZADD', QUEUED, now + (q.look_ms or 0), q.run)
  if redis.call('ZCARD', QUEUE) == 0 then redis.call('ZREM', WAITING, s.id) end
  local fires = #overdue > 0 and cause == 'callbacks'
  if fires then
    -- A deadline fires once: what comes after it is delivered as it comes.
    for _, group in ipairs(overdue) do policy[group] = { mode = 'any', window_ms = policy[group].window_ms } end
    redis.call('HSET', RUN, 'overdue', cjson.encode(overdue))
  end
  -- A deadline that was met is removed, so that it does not apply to children launched later.
  for _, group in ipairs(kept) do
    policy[group].deadline_ms = nil
    policy[group].parks = nil
  end
  if fires or #kept > 0 then redis.call('HSET', KEYS[1], 'waiting', cjson.encode(policy)) end
  make_ready(ready, turns, q.run, s.root, s.priority)
  return { 'run', q.run, s.agent, cause, more and '1' or '0', must_wake(ready, turns, now) }
end
local function sleep_until(due)
  if due > 0 then redis.call('ZADD', TIMERS, due, 'flush|' .. s.id) end
  return { 'waits', tostring(due) }
end

if redis.call('ZCARD', QUEUE) == 0 then
  redis.call('ZREM', WAITING, s.id)
  -- Its last callback died by policy: nothing will come any more, so it runs once more for its final answer.
  -- Or a deadline has passed, and nothing at all has come.
  local pending = count(s.launched) - count(s.delivered) - count(s.dead)
  if #overdue > 0 or (wake_at == 0 and s.state == 'idle' and pending <= 0 and count(s.questions) <= 0) then
    return make_run({}, 'callbacks', false)
  end
  return wake_at > 0 and sleep_until(wake_at) or { 'empty' }
end

local verdicts = {}
local function met(group)
  if verdicts[group] ~= nil then return verdicts[group] end
  verdicts[group] = is_overdue[policy[group] and group or ''] or is_met(KEYS[1], rule_of(policy, group), group)
  return verdicts[group]
end

-- What was queued and not ready the last time is not looked at again while none of its groups is: so that many
-- children of one parent cost no more each than a few. The field `unready` holds how far that look went.
local seen = s.unready ~= '' and cjson.decode(s.unready) or nil
if seen and (seen.waiting ~= s.waiting or #overdue > 0) then seen = nil end
local groups = {}
for _, group in ipairs(seen and seen.groups or {}) do
  groups[group] = true
  if met(group) then seen = nil end
end
local function still_waits()
  local names = {}
  for group in pairs(groups) do names[#names + 1] = group end
  redis.call('HSET', KEYS[1], 'unready', cjson.encode({ seq = count(s.seq), groups = names, waiting = s.waiting }))
  return sleep_until(wake_at)
end
local function fresh_is_ready()
  for rank = 0, 3 do
    local low, high = rank * 1e12, rank * 1e12 + 1e12 - 1
    local fresh = redis.call('ZRANGEBYSCORE', QUEUE, string.format('(%.0f', low + seen.seq), string.format('%.0f', high))
    for _, id in ipairs(fresh) do
      local record = item(ITEMS, id)
      if record.kind ~= 'completion' or met(record.group or '') then return true end
      groups[record.group or ''] = true
    end
  end
  return false
end
if seen and not fresh_is_ready() then return still_waits() end

-- One run carries one prompt of a user, or callbacks and messages; what comes first decides.
-- Callbacks that arrive close together share a run: the window opens with the first of them.
local chosen, bytes, urgent, cause, left, window = {}, 0, #overdue > 0, nil, false, nil
-- Whether the run has room for an item and what comes after it.
local function choose(id, record)
  local kind = record.kind == 'prompt' and 'user' or 'callbacks'
  if record.kind == 'completion' and not met(record.group or '') then
    groups[record.group or ''] = true
    return true
  end
  if cause and (cause ~= kind or kind == 'user') then
    left = true
    return true
  end
  if #chosen > 0 and (#chosen >= (q.max_items or 0) or bytes + record.size > (q.max_bytes or 0)) then
    left = true
    return false
  end
  cause = kind
  if record.kind ~= 'completion' then
    urgent = true
  else
    local own = tonumber(rule_of(policy, record.group or '').window_ms) or 0
    if window == nil or own < window then window = own end
  end
  bytes = bytes + record.size
  chosen[#chosen + 1] = { id, record }
  return true
end
local start, room = 0, true
repeat
  local page = redis.call('ZRANGE', QUEUE, start, start + 199)
  local texts = call_with('HMGET', ITEMS, page)
  for i, id in ipairs(page) do
    room = room and choose(id, item_of(texts[i]))
  end
  start = start + 200
until not room or #page < 200
if #chosen == 0 then
  if #overdue == 0 then return still_waits() end
  cause = 'callbacks'
end

if (window or 0) > 0 and not urgent then
  local ends = count(s.window_until)
  -- One that lies further ahead was opened by a clock that has gone back since.
  if ends == 0 or ends > now + window then
    ends = now + window
    redis.call('HSET', KEYS[1], 'window_until', ends)
  end
  if now < ends then return sleep_until(wake_at > 0 and math.min(ends, wake_at) or ends) end
end

return make_run(chosen, cause, left)
