-- Shared by all scripts: reading hashes, time, publishing an envelope.
-- Fields of a hash by name, '' where one is missing; and the values as they are, in their order.
local function fields(key, ...)
  local names = {...}
  local values = redis.call('HMGET', key, unpack(names))
  local t = {}
  for i, name in ipairs(names) do t[name] = values[i] or '' end
  return t, values
end

-- The time in milliseconds: the server's, unless a test says otherwise.
local function clock(given)
  if given and given ~= '' then return tonumber(given) end
  local t = redis.call('TIME')
  return tonumber(t[1]) * 1000 + math.floor(tonumber(t[2]) / 1000)
end

-- Names and values in turn, as a table; and all fields of a hash.
local function by_name(flat)
  local facts = {}
  for i = 1, #flat, 2 do facts[flat[i]] = flat[i + 1] end
  return facts
end
local function object(key) return by_name(redis.call('HGETALL', key)) end

local function count(text) return tonumber(text) or 0 end

-- The value of a counter of a hash that has this text, to be written again; what is no whole number is refused as ever.
local function counter(key, name, text)
  if not text then return 0 end
  if #text < 16 and (text == '0' or string.find(text, '^%-?[1-9]%d*$')) then return tonumber(text) end
  return redis.call('HINCRBY', key, name, 0)
end

-- The key of the same shard that has this name behind the hash tag.
local function beside(key, name) return string.match(key, '^[^{]*{[^}]*}:') .. name end

-- The fields of a run that is held under this claim; else nil.
local function held_run(run, claim, ...)
  local r = fields(run, 'state', 'claim', ...)
  if r.state == 'running' and r.claim == claim then return r end
end

-- What this step changes in the ledger, for the audit trail: the kind of thing, its session, its id ('-': the session
-- itself), the state it has now, and what else is known of it. See lib/transition.lua.
local function changed(...) changes[#changes + 1] = table.concat({...}, ' ') end

-- The session whose key this is, or the key of something that belongs to it.
local function session_of(key) return string.match(key, ':session:([^:]+)') or '-' end

local CLOSED = { failed = true, stopped = true, deleted = true }
local ENDED = { completed = true, failed = true, stopped = true }
local RANK = { critical = 0, high = 1, normal = 2, low = 3 }

-- Order of a queue: by priority, then by arrival.
local function score(priority, seq) return (RANK[priority] or 2) * 1e12 + seq end

-- The runs of a tree so far: a first one for each session, and every resume, which `root` counts.
local function runs_of(sessions, root) return sessions + count(redis.call('HGET', root, 'resumes')) end

-- Append an entry to a stream of messages and count it. Returns its id, and the type and priority of the stream.
local function append(stream, totals, ...)
  local kind = string.match(stream, ':msg:(.*)$')
  local id = redis.call('XADD', stream, '*', ...)
  redis.call('HINCRBY', totals, 'published:' .. kind, 1)
  return id, kind
end

-- Append an envelope, if there is one. Returns its place, '' or type:priority:entry.
-- Further fields say about the entry what its sender cannot.
local function publish(stream, totals, envelope, ...)
  if envelope == '' then return '' end
  local id, kind = append(stream, totals, 'envelope', envelope, ...)
  return kind .. ':' .. id
end

-- Redis does not roll back: a key of another type must end a transition before its first write. Raises if one of these
-- keys is neither missing nor of the type that the command is for: ZCARD, HLEN, XLEN, LLEN.
local function check(command, ...)
  for _, key in ipairs({...}) do redis.call(command, key) end
end

-- Calls a command with a key and a list, as much of it at once as Lua takes arguments. Returns the lists it answers as one.
local function call_with(command, key, list)
  local all = {}
  for from = 1, #list, 1000 do
    local page = redis.call(command, key, unpack(list, from, math.min(from + 999, #list)))
    for _, value in ipairs(type(page) == 'table' and page or {}) do all[#all + 1] = value end
  end
  return all
end

-- The state in which each item was read or written last.
local states = {}

-- The item of a session that has this text in its records; nil when it is not there.
local function item_of(text)
  if not text then return nil end
  local record = cjson.decode(text)
  states[record] = record.state
  return record
end
local function item(items, id) return item_of(redis.call('HGET', items, id)) end

-- An approval is a question to a person: its item is in the records of the session that asks, and it is in the index of
-- open ones, which is found from any key of the shard.
local function is_approval(id) return string.sub(id, 1, 4) == 'apr_' end

-- The same, and nil as well where it cannot be read: what ends a session goes on without it.
local function readable_item(items, id)
  local fine, record = pcall(item, items, id)
  return fine and record or nil
end

local function item_changed(items, id, record)
  local what = record.kind == 'completion' and 'callback' or is_approval(id) and 'approval' or 'item'
  changed(what, session_of(items), id, record.state, record.kind)
end

-- Write items of a session: for each its id and its record.
local function save_all(items, all)
  local texts = {}
  for i, one in ipairs(all) do texts[2 * i - 1], texts[2 * i] = one[1], cjson.encode(one[2]) end
  call_with('HSET', items, texts)
  for _, one in ipairs(all) do
    local id, record = one[1], one[2]
    if states[record] ~= record.state then
      states[record] = record.state
      item_changed(items, id, record)
    end
  end
end
local function save(items, id, record) save_all(items, { { id, record } }) end

local function mark_dead(items, id, record, reason)
  record.state = 'dead'
  record.reason = reason
  save(items, id, record)
end

-- When a session has to have ended, by its `limit` or as a `review`: in its record, and as the timer by which the sweep
-- fails it.
local function end_by(timers, session, id, timer, due)
  redis.call('HSET', session, timer .. '_due_ms', due)
  redis.call('ZADD', timers, due, timer .. '|' .. id)
end

-- A session may take so many milliseconds; 0: any time.
local function limit_time(timers, session, id, now, limit_ms)
  if tonumber(limit_ms) > 0 then end_by(timers, session, id, 'limit', string.format('%.0f', now + tonumber(limit_ms))) end
end

-- How many callbacks of a group a session has `launched`, and how many of them are `owed`, `delivered` or `dead`.
local function group_field(group, what) return 'group:' .. (group or '') .. ':' .. what end

-- So many more callbacks of the session `key`, and of this group, are launched, owed, delivered or dead.
local function count_callbacks(key, group, what, more)
  redis.call('HINCRBY', key, what, more)
  redis.call('HINCRBY', key, group_field(group, what), more)
end

-- A large text that a transition refers to is kept as long as its session; until then it would expire.
local function keep(whole, large_texts, sha256)
  redis.call('PERSIST', whole)
  redis.call('SADD', large_texts, sha256)
end

-- The rule of a group in a session's waiting policy: its own, else that of the group ''.
local function rule_of(policy, group) return policy[group] or policy[''] or { mode = 'any' } end

-- Whether a group of the session `key` has what its rule waits for: any | all | quorum; a quorum that can no
-- longer be reached is met as well. Of a quorum are those callbacks that come: none that died by policy, and none
-- that an earlier run had when the rule was made (its `base`, for each group).
-- `c`: the numbers of the group's owed, launched and dead ones, if the caller has read them.
local function is_met(key, rule, group, c)
  if rule.mode == 'any' or rule.mode == nil then return true end
  c = c or redis.call('HMGET', key, group_field(group, 'owed'), group_field(group, 'launched'), group_field(group, 'dead'))
  local owed, launched, dead = count(c[1]), count(c[2]), count(c[3])
  if owed <= 0 then return true end
  local had = rule.base and rule.base[group] or 0
  if rule.mode ~= 'quorum' then return false end
  local k, left = tonumber(rule.k) or 1, launched - had
  return left - dead - owed >= k or (left >= k and left - dead < k)
end

-- The approval is open no longer. Where nobody has answered it, `reason` says why nobody will.
local function close_approval(items, id, reason)
  redis.call('ZREM', beside(items, 'approvals'), id)
  redis.call('ZREM', beside(items, 'timers'), 'approval|' .. id)
  local record = reason and readable_item(items, id)
  if record then mark_dead(items, id, record, reason) end
end

-- All open approvals of the session `key` are closed.
local function close_approvals(key, items, reason)
  for _, name in ipairs(redis.call('HKEYS', key)) do
    local id = string.match(name, '^question:(apr_.*)$')
    if id then close_approval(items, id, reason) end
  end
end
