-- reindex: what the shard's indexes and a session's counters say is derived again from its records, by the doctor.
-- Everything is read, and so found readable, before anything is written; what is right already is left alone.
-- A run whose record is gone is queued again under its id, so that it has its effects and steps once; a session that
-- counts as at work, or as waiting for something, and is not, is what its last run made of it.
-- KEYS  1 session
-- ARGV  1 request: ttl_ms: lifetime of a finished tree; recount: derive counters and queue from the items, too; else something says
--         that an item is missing or wrong
-- Returns  {'done', what was put right, …} | {'unknown'}
-- Complexity: O(items).
-- include: base
-- include: request
-- include: new
local ITEMS, QUEUE = KEYS[1] .. ':items', KEYS[1] .. ':queue'
local ROOTS, RUNNING, QUEUED, WAITING = in_shard('roots'), in_shard('running'), in_shard('queued'), in_shard('waiting')
local CLOSING, TIMERS, RESULTS = in_shard('closing'), in_shard('timers'), in_shard('results')
local now, id = clock(q.now), session_of(KEYS[1])
local s = fields(KEYS[1], 'id', 'parent', 'root', 'state', 'run', 'runs', 'created_ms', 'ended_ms', 'settled_ms', 'due_ms',
  'stop_pending')
if s.id ~= id then return { 'unknown' } end
local RUN = s.run ~= '' and in_shard('run:' .. s.run) or KEYS[1]
local TREE = in_shard('tree:' .. (s.root ~= '' and s.root or id))
local r = s.run ~= '' and fields(RUN, 'id', 'state', 'claim', 'started_ms', 'items') or { id = '' }
local runs, own_run, was = KEYS[1] .. ':runs', s.run, s.state
if r.id == s.run and ENDED[r.state] then s.run = '' end
local rebuilt = s.run ~= '' and r.id == '' and s.run or nil
local function how_ended(run)
  local fine, state = pcall(redis.call, 'HGET', beside(KEYS[1], 'run:' .. run), 'state')
  return fine and state or ''
end
-- Where the session stands, by its runs, if it has none that is open.
local function right_state()
  if count(s.ended_ms) == 0 then return count(s.runs) > 0 and 'idle' or s.state end
  local last = redis.call('LINDEX', runs, -1)
  local how = last and how_ended(last) or ''
  if how == 'completed' then return 'finished' end
  return ENDED[how] and how or s.state
end
local amiss = s.state == 'running' or (s.state == 'idle' and count(s.ended_ms) > 0)
  or (s.state == 'pending' and count(s.runs) > 0)
if s.run == '' and amiss then s.state = right_state() end
if rebuilt and CLOSED[s.state] then rebuilt, s.run = nil, '' end
local listed = {}
local fine, ids = pcall(cjson.decode, r.items or '[]')
for _, one in ipairs(fine and type(ids) == 'table' and ids or {}) do listed[one] = true end

-- What the records say.
local facts, groups, right = object(KEYS[1]), {}, { launched = 0, delivered = 0, dead = 0, owed = 0, questions = 0 }
for name in pairs(facts) do
  if string.sub(name, 1, 9) == 'question:' then right.questions = right.questions + 1 end
  local group, what = string.match(name, '^group:(.*):(%l+)$')
  if group then groups[group_field(group, what)] = 0 end
end
local records, queue, carried, again = redis.call('HGETALL', ITEMS), {}, {}, {}
for i = 1, #records, 2 do
  local record = cjson.decode(records[i + 1])
  if record.state == 'claimed' and rebuilt and record.run == rebuilt then
    carried[#carried + 1] = { records[i], record }
  elseif record.state == 'claimed' and q.recount and not CLOSED[s.state]
      and (s.run == '' or record.run ~= s.run or not listed[records[i]])
      and how_ended(record.run) ~= 'completed' then
    record.state, record.run, record.taken = 'queued', '', nil
    again[records[i]] = record
  end
  if record.state == 'queued' then queue[records[i]] = score(record.priority, record.seq) end
  if record.kind == 'completion' and record.state ~= 'none' then
    right.launched = right.launched + 1
    if right[record.state] then right[record.state] = right[record.state] + 1 end
    for _, what in ipairs({ 'launched', record.state }) do
      if what ~= 'queued' and what ~= 'claimed' then
        local name = group_field(record.group, what)
        groups[name] = (groups[name] or 0) + 1
      end
    end
  end
end
local strays = {}
for _, member in ipairs(redis.call('ZRANGE', QUEUE, 0, -1)) do
  if queue[member] then queue[member] = nil else strays[#strays + 1] = member end
end
local function missing(key, member) return not redis.call('ZSCORE', key, member) end
local closed = CLOSED[s.state]
local in_doubt = not q.recount or closed
local queued = redis.call('ZCARD', QUEUE) - (in_doubt and 0 or #strays) > 0 or (not in_doubt and next(queue) ~= nil)
local over = closed or (s.state == 'finished' and s.run == '')
-- Nothing is outstanding: it runs once more, for its final answer.
local rests = not in_doubt and s.state == 'idle' and s.run == '' and s.stop_pending == '' and right.questions == 0
  and right.launched <= right.delivered + right.dead and missing(TIMERS, 'flush|' .. id)
-- A deadline is to be kept, for which the callback service sets a timer.
local function has_deadline()
  local fine, policy = pcall(cjson.decode, facts.waiting or '')
  if not fine or type(policy) ~= 'table' then return false end
  local function owed(group) return count(facts[group_field(group, 'owed')]) end
  local others = 0
  for group in pairs(policy) do others = others + (group ~= '' and owed(group) or 0) end
  for group, rule in pairs(policy) do
    if type(rule) == 'table' and rule.deadline_ms
        and (rule.parks or (group ~= '' and owed(group) or right.owed - others) > 0) then
      return true
    end
  end
  return false
end
local wakes = s.state == 'idle' and s.run == '' and missing(TIMERS, 'flush|' .. id) and has_deadline()
-- What should stand in an index and does not: its name, the index, its place there and itself.
local absent = {}
local function look_for(what, should, key, at, member)
  if should and missing(key, member) then absent[#absent + 1] = { what, key, at, member } end
end
look_for('dispatch', s.run ~= '' and (rebuilt or (r.id == s.run and r.state == 'queued')), QUEUED, now, s.run)
local at_work = s.run ~= '' and r.id == s.run and r.state == 'running' and r.claim ~= 'external'
look_for('running', at_work, RUNNING, count(r.started_ms), s.run)
look_for('waiting', (queued or rests or wakes) and not closed, WAITING, now, id)
look_for('closing', closed and right.owed > 0, CLOSING, now, id)
look_for('tree', s.root ~= '', TREE, count(s.created_ms), id)
look_for('roots', s.root == id, ROOTS, count(s.created_ms), id)
look_for('schedule', s.state == 'scheduled', TIMERS, count(s.due_ms), 'submit|' .. id)
look_for('limit', not over and facts.limit_due_ms, TIMERS, count(facts.limit_due_ms), 'limit|' .. id)
look_for('review', not over and facts.review_due_ms, TIMERS, count(facts.review_due_ms), 'review|' .. id)
local ended = s.root == id and over and missing(RESULTS, id)
look_for('results', ended and s.settled_ms == '', RESULTS, now, id)
look_for('expire', ended and s.settled_ms ~= '', TIMERS, count(s.ended_ms) + (q.ttl_ms or 0), 'expire|' .. id)

local done = { 'done' }
if rebuilt then
  table.sort(carried, function(a, b) return a[2].seq < b[2].seq end)
  local cause, names = count(s.runs) == 1 and 'start' or 'callbacks', {}
  for i, one in ipairs(carried) do
    names[i] = one[1]
    if one[2].kind == 'prompt' then cause = 'user' end
  end
  write_run(RUN, rebuilt, id, s.runs, cause, names, now)
  local steps = 0
  for _, name in ipairs(redis.call('TYPE', RUN .. ':steps').ok == 'hash' and redis.call('HKEYS', RUN .. ':steps') or {}) do
    if string.sub(name, 1, 2) == 'h:' then steps = steps + 1 end
  end
  -- It may have been begun: what it did and recorded then is looked up.
  redis.call('HSET', RUN, 'steps', steps, 'attempt', 1)
  if not redis.call('LPOS', runs, rebuilt) then redis.call('RPUSH', runs, rebuilt) end
  redis.call('ZREM', RUNNING, rebuilt)
  done[#done + 1] = 'run'
end
if s.run ~= own_run or s.state ~= was then
  redis.call('HSET', KEYS[1], 'run', s.run, 'state', s.state)
  changed('session', id, '-', s.state)
  done[#done + 1] = 'state'
end
for name, record in pairs(again) do
  save(ITEMS, name, record)
  done[#done + 1] = 'items'
end
for _, one in ipairs(absent) do
  redis.call('ZADD', one[2], one[3], one[4])
  done[#done + 1] = one[1]
end
local function set(name, value)
  if count(facts[name]) == value then return end
  redis.call('HSET', KEYS[1], name, value)
  done[#done + 1] = name
end
if not closed then
  -- Open approvals: `orchestra questions` lists them by their index, and a timer ends them.
  local approvals = beside(KEYS[1], 'approvals')
  for name in pairs(facts) do
    local approval = string.match(name, '^question:(apr_.*)$')
    local record = approval and item(ITEMS, approval)
    if record then
      local fine, request = pcall(cjson.decode, record.context or '')
      local due = fine and type(request) == 'table' and count(request.expires_ms) or 0
      if missing(approvals, approval) or (due > 0 and missing(TIMERS, 'approval|' .. approval)) then
        redis.call('ZADD', approvals, 'NX', count(record.at_ms), approval)
        if due > 0 then redis.call('ZADD', TIMERS, 'NX', due, 'approval|' .. approval) end
        done[#done + 1] = 'approvals'
      end
    end
  end
end
if not in_doubt then
  for member, at in pairs(queue) do redis.call('ZADD', QUEUE, at, member) end
  for _, member in ipairs(strays) do redis.call('ZREM', QUEUE, member) end
  if next(queue) or #strays > 0 then done[#done + 1] = 'queue' end
end
if q.recount then
  -- A closed session is resumed by nothing, so that its groups are not kept; a tombstone has its dead items only.
  if s.state ~= 'deleted' then
    for name, value in pairs(right) do set(name, value) end
  end
  if not closed then
    for name, value in pairs(groups) do set(name, value) end
  end
end
table.sort(done, function(a, b) return a ~= b and (a == 'done' or (b ~= 'done' and a < b)) end)
return done
