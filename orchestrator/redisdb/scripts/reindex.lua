-- reindex: what the shard's indexes and a session's counters say is derived again from its records, by the doctor.
-- Everything is read, and so found readable, before anything is written; what is right already is left alone.
-- KEYS  1 session  2 items  3 queue  4 run|session  5 tree  6 roots  7 running  8 queued  9 waiting
--       10 closing  11 timers  12 results
-- ARGV  1 now or ''  2 session id  3 run whose key came, or ''  4 lifetime of a finished tree in ms
--       5 '1': derive counters and queue from the items, too; '': something says that an item is missing or wrong
-- Returns  {'done', what was put right, …} | {'unknown'} | {'run', its id}: pass the key of that run
-- Complexity: O(items).
-- include: base
local now, id = clock(ARGV[1]), ARGV[2]
local s = fields(KEYS[1], 'id', 'parent', 'root', 'state', 'run', 'created_ms', 'ended_ms', 'settled_ms', 'due_ms')
if s.id ~= id then return { 'unknown' } end
if s.run ~= ARGV[3] then return { 'run', s.run } end
local r = s.run ~= '' and fields(KEYS[4], 'id', 'state', 'claim', 'started_ms') or { id = '' }

-- What the records say.
local facts, groups, right = {}, {}, { launched = 0, delivered = 0, dead = 0, owed = 0, questions = 0 }
local flat = redis.call('HGETALL', KEYS[1])
for i = 1, #flat, 2 do
  facts[flat[i]] = flat[i + 1]
  if string.sub(flat[i], 1, 9) == 'question:' then right.questions = right.questions + 1 end
  local group, what = string.match(flat[i], '^group:(.*):(%l+)$')
  if group then groups[group_field(group, what)] = 0 end
end
local records, queue = redis.call('HGETALL', KEYS[2]), {}
for i = 1, #records, 2 do
  local record = cjson.decode(records[i + 1])
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
local absent = {
  dispatch = r.id == s.run and r.state == 'queued' and missing(KEYS[8], s.run),
  running = r.id == s.run and r.state == 'running' and r.claim ~= 'external' and missing(KEYS[7], s.run),
  waiting = queued and not closed and missing(KEYS[9], id),
  closing = closed and right.owed > 0 and missing(KEYS[10], id),
  tree = s.root ~= '' and missing(KEYS[5], id),
  roots = s.root == id and missing(KEYS[6], id),
  schedule = s.state == 'scheduled' and missing(KEYS[11], 'submit|' .. id),
}
if s.root == id and over and missing(KEYS[12], id) then
  absent.results = s.settled_ms == ''
  absent.expire = s.settled_ms ~= '' and missing(KEYS[11], 'expire|' .. id)
end

local done = { 'done' }
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
