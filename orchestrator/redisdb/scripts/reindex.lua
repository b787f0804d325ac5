-- reindex: what the shard's indexes and a session's counters say is derived again from its records, by the doctor.
-- Everything is read, and so found readable, before anything is written; what is right already is left alone.
-- A run whose record is gone is queued again under its id, so that it has its effects and steps once; a session that
-- counts as at work, or as waiting for something, and is not, is what its last run made of it.
-- KEYS  1 session  2 items  3 queue  4 run|session  5 tree  6 roots  7 running  8 queued  9 waiting
--       10 closing  11 timers  12 results
-- ARGV  1 now or ''  2 session id  3 run whose key came, or ''  4 lifetime of a finished tree in ms
--       5 '1': derive counters and queue from the items, too; '': something says that an item is missing or wrong
-- Returns  {'done', what was put right, …} | {'unknown'} | {'run', its id}: pass the key of that run
-- Complexity: O(items).
-- include: base
-- include: new
local now, id = clock(ARGV[1]), ARGV[2]
local s = fields(KEYS[1], 'id', 'parent', 'root', 'state', 'run', 'runs', 'created_ms', 'ended_ms', 'settled_ms', 'due_ms',
  'stop_pending')
if s.id ~= id then return { 'unknown' } end
if s.run ~= ARGV[3] then return { 'run', s.run } end
local r = s.run ~= '' and fields(KEYS[4], 'id', 'state', 'claim', 'started_ms', 'items') or { id = '' }
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
local facts, groups, right = {}, {}, { launched = 0, delivered = 0, dead = 0, owed = 0, questions = 0 }
local flat = redis.call('HGETALL', KEYS[1])
for i = 1, #flat, 2 do
  facts[flat[i]] = flat[i + 1]
  if string.sub(flat[i], 1, 9) == 'question:' then right.questions = right.questions + 1 end
  local group, what = string.match(flat[i], '^group:(.*):(%l+)$')
  if group then groups[group_field(group, what)] = 0 end
end
local records, queue, carried, again = redis.call('HGETALL', KEYS[2]), {}, {}, {}
for i = 1, #records, 2 do
  local record = cjson.decode(records[i + 1])
  if record.state == 'claimed' and rebuilt and record.run == rebuilt then
    carried[#carried + 1] = { records[i], record }
  elseif record.state == 'claimed' and ARGV[5] == '1' and not CLOSED[s.state]
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
for _, member in ipairs(redis.call('ZRANGE', KEYS[3], 0, -1)) do
  if queue[member] then queue[member] = nil else strays[#strays + 1] = member end
end
local function missing(key, member) return not redis.call('ZSCORE', key, member) end
local closed = CLOSED[s.state]
local in_doubt = ARGV[5] ~= '1' or closed
local queued = redis.call('ZCARD', KEYS[3]) - (in_doubt and 0 or #strays) > 0 or (not in_doubt and next(queue) ~= nil)
local over = closed or (s.state == 'finished' and s.run == '')
-- Nothing is outstanding: it runs once more, for its final answer.
local rests = not in_doubt and s.state == 'idle' and s.run == '' and s.stop_pending == '' and right.questions == 0
  and right.launched <= right.delivered + right.dead and missing(KEYS[11], 'flush|' .. id)
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
local wakes = s.state == 'idle' and s.run == '' and missing(KEYS[11], 'flush|' .. id) and has_deadline()
local absent = {
  dispatch = s.run ~= '' and (rebuilt or (r.id == s.run and r.state == 'queued')) and missing(KEYS[8], s.run),
  running = s.run ~= '' and r.id == s.run and r.state == 'running' and r.claim ~= 'external' and missing(KEYS[7], s.run),
  waiting = (queued or rests or wakes) and not closed and missing(KEYS[9], id),
  closing = closed and right.owed > 0 and missing(KEYS[10], id),
  tree = s.root ~= '' and missing(KEYS[5], id),
  roots = s.root == id and missing(KEYS[6], id),
  schedule = s.state == 'scheduled' and missing(KEYS[11], 'submit|' .. id),
  limit = not over and facts.limit_due_ms and missing(KEYS[11], 'limit|' .. id),
  review = not over and facts.review_due_ms and missing(KEYS[11], 'review|' .. id),
}
if s.root == id and over and missing(KEYS[12], id) then
  absent.results = s.settled_ms == ''
  absent.expire = s.settled_ms ~= '' and missing(KEYS[11], 'expire|' .. id)
end

local done = { 'done' }
if rebuilt then
  table.sort(carried, function(a, b) return a[2].seq < b[2].seq end)
  local cause, names = count(s.runs) == 1 and 'start' or 'callbacks', {}
  for i, one in ipairs(carried) do
    names[i] = one[1]
    if one[2].kind == 'prompt' then cause = 'user' end
  end
  write_run(KEYS[4], rebuilt, id, s.runs, cause, names, now)
  local steps = 0
  for _, name in ipairs(redis.call('TYPE', KEYS[4] .. ':steps').ok == 'hash' and redis.call('HKEYS', KEYS[4] .. ':steps') or {}) do
    if string.sub(name, 1, 2) == 'h:' then steps = steps + 1 end
  end
  -- It may have been begun: what it did and recorded then is looked up.
  redis.call('HSET', KEYS[4], 'steps', steps, 'attempt', 1)
  if not redis.call('LPOS', runs, rebuilt) then redis.call('RPUSH', runs, rebuilt) end
  redis.call('ZREM', KEYS[7], rebuilt)
  done[#done + 1] = 'run'
end
if s.run ~= own_run or s.state ~= was then
  redis.call('HSET', KEYS[1], 'run', s.run, 'state', s.state)
  changed('session', id, '-', s.state)
  done[#done + 1] = 'state'
end
for name, record in pairs(again) do
  save(KEYS[2], name, record)
  done[#done + 1] = 'items'
end
local function put(what, key, at, member)
  if not absent[what] then return end
  redis.call('ZADD', key, at, member)
  done[#done + 1] = what
end
put('dispatch', KEYS[8], now, s.run)
put('running', KEYS[7], count(r.started_ms), s.run)
put('waiting', KEYS[9], now, id)
put('closing', KEYS[10], now, id)
put('tree', KEYS[5], count(s.created_ms), id)
put('roots', KEYS[6], count(s.created_ms), id)
put('schedule', KEYS[11], count(s.due_ms), 'submit|' .. id)
put('limit', KEYS[11], count(facts.limit_due_ms), 'limit|' .. id)
put('review', KEYS[11], count(facts.review_due_ms), 'review|' .. id)
put('results', KEYS[12], now, id)
put('expire', KEYS[11], count(s.ended_ms) + tonumber(ARGV[4]), 'expire|' .. id)
local function set(name, value)
  if count(facts[name]) == value then return end
  redis.call('HSET', KEYS[1], name, value)
  done[#done + 1] = name
end
if not closed then
  -- Open approvals: `orchestra approvals` lists them by their index, and a timer ends them.
  local approvals = beside(KEYS[1], 'approvals')
  for name in pairs(facts) do
    local approval = string.match(name, '^question:(apr_.*)$')
    local record = approval and item(KEYS[2], approval)
    if record then
      local fine, request = pcall(cjson.decode, record.context or '')
      local due = fine and type(request) == 'table' and count(request.expires_ms) or 0
      if missing(approvals, approval) or (due > 0 and missing(KEYS[11], 'approval|' .. approval)) then
        redis.call('ZADD', approvals, 'NX', count(record.at_ms), approval)
        if due > 0 then redis.call('ZADD', KEYS[11], 'NX', due, 'approval|' .. approval) end
        done[#done + 1] = 'approvals'
      end
    end
  end
end
if not in_doubt then
  for member, at in pairs(queue) do redis.call('ZADD', KEYS[3], at, member) end
  for _, member in ipairs(strays) do redis.call('ZREM', KEYS[3], member) end
  if next(queue) or #strays > 0 then done[#done + 1] = 'queue' end
end
if ARGV[5] == '1' then
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
