-- Keys: where they are found, made and dropped, when they expire, and the commands for any type.
local server = ...
local add, fail, integer, map, put, take = server.add, server.fail, server.integer, server.map, server.put, server.take
local OK, WRONG_TYPE = server.OK, server.WRONG_TYPE
local upper, match = string.upper, string.find

-- All keys; a copy of it is the whole state of the server.
local db = map('keys')
server.now_us, server.now_ms = 0, 0
-- How many entries were added to streams so far.
server.added = 0

-- The keys that were asked for since the last copy, and since somebody read what has changed; and whether all had gone meanwhile.
local asked, touched, emptied = {}, {}, false

-- The object of a key, if it is there and of this kind.
local function find(key, kind)
  local object = db.at[key]
  if object == nil then return nil end
  asked[key], touched[key] = true, true
  if object.expires and object.expires < server.now_ms then
    take(db, key)
    return nil
  end
  if kind and object.kind ~= kind then fail(WRONG_TYPE) end
  return object
end
server.find = find

-- How many entries were ever added to these streams.
function server.added_to(...)
  local n = 0
  for i = 1, select('#', ...) do
    local object = db.at[select(i, ...)]
    n = n + (object and object.added or 0)
  end
  return n
end

local function store(key, object)
  asked[key], touched[key] = true, true
  put(db, key, object)
  return object
end
server.store = store

function server.find_or_make(key, kind) return find(key, kind) or store(key, map(kind)) end
function server.drop(key) return take(db, key) end

-- Removes a name from the map of a key, which goes with its last one.
function server.take_from(key, object, name)
  if not take(object, name) then return false end
  if object.n == 0 then take(db, key) end
  return true
end

local function delete(...)
  local gone = 0
  for i = 1, select('#', ...) do
    local key = select(i, ...)
    if find(key) and take(db, key) then gone = gone + 1 end
  end
  return gone
end
add('DEL', -2, delete)
add('UNLINK', -2, delete)

add('EXISTS', -2, function(...)
  local n = 0
  for i = 1, select('#', ...) do
    if find((select(i, ...))) then n = n + 1 end
  end
  return n
end)

add('TYPE', 2, function(key)
  local object = find(key)
  return { ok = object and object.kind or 'none' }
end)

local CONDITIONS = { NX = true, XX = true, GT = true, LT = true }
-- Sets when a key expires: at once, if that is past.
local function expire_at(key, ms, ...)
  local only = {}
  for i = 1, select('#', ...) do
    local option = upper((select(i, ...)))
    if not CONDITIONS[option] then fail('ERR Unsupported option ' .. select(i, ...)) end
    only[option] = true
  end
  if only.NX and (only.XX or only.GT or only.LT) then
    fail('ERR NX and XX, GT or LT options at the same time are not compatible')
  elseif only.GT and only.LT then fail('ERR GT and LT options at the same time are not compatible') end
  local object = find(key)
  if not object then return 0 end
  local before = object.expires
  if only.NX and before or only.XX and not before or only.GT and ms <= (before or math.huge)
    or only.LT and ms >= (before or math.huge) then
    return 0
  end
  object.expires = ms
  if ms <= server.now_ms then take(db, key) end
  return 1
end
add('PEXPIREAT', -3, function(key, ms, ...) return expire_at(key, integer(ms), ...) end)
add('EXPIREAT', -3, function(key, s, ...) return expire_at(key, integer(s) * 1000, ...) end)
add('PEXPIRE', -3, function(key, ms, ...) return expire_at(key, server.now_ms + integer(ms), ...) end)
add('EXPIRE', -3, function(key, s, ...) return expire_at(key, server.now_ms + integer(s) * 1000, ...) end)

add('PERSIST', 2, function(key)
  local object = find(key)
  if not object or not object.expires then return 0 end
  object.expires = nil
  return 1
end)

local function left(key)
  local object = find(key)
  if not object then return -2 end
  return object.expires and object.expires - server.now_ms or -1
end
add('PTTL', 2, left)
add('TTL', 2, function(key)
  local ms = left(key)
  return ms < 0 and ms or math.floor((ms + 500) / 1000)
end)

add('RENAME', 3, function(from, to)
  local object = find(from)
  if not object then fail('ERR no such key') end
  if from ~= to then
    take(db, from)
    take(db, to)
    store(to, object)
  end
  return OK
end)

local function keys(pattern, kind)
  local found = {}
  for _, key in ipairs(server.names(db)) do
    local object = match(key, pattern) and find(key)
    if object and (not kind or object.kind == kind) then found[#found + 1] = key end
  end
  return found
end
add('KEYS', 2, function(glob) return keys(server.pattern(glob)) end)
add('SCAN', -2, function(cursor, ...)
  server.check_cursor(cursor)
  local pattern, kind = server.scan_options({ ... })
  return { '0', keys(pattern, kind) }
end)
add('DBSIZE', 1, function() return #keys('') end)

local function flush()
  for name, value in pairs(map('keys')) do db[name] = value end
  touched, emptied = {}, true
  return OK
end
add('FLUSHDB', -1, flush)
add('FLUSHALL', -1, flush)

add('PING', -1, function(text) return text or { ok = 'PONG' } end)
add('TIME', 1, function() return { server.plain(math.floor(server.now_us / 1e6)), server.plain(server.now_us % 1e6) } end)
-- Nobody listens, and nobody follows.
add('PUBLISH', 3, function() return 0 end)
add('WAIT', 3, function() return 0 end)

-- --- copies, for a server that starts again -------------------------------------------------------

local function copied(value)
  -- An entry of a stream stays as it is.
  if type(value) ~= 'table' or value.fields then return value end
  local copy = {}
  for name, part in pairs(value) do copy[name] = copied(part) end
  return copy
end

-- The objects of the last copy: those that nobody has asked for since are the same in the next one.
local last = {}

function server.copy()
  local names, objects = server.names(db), {}
  for _, key in ipairs(names) do objects[key] = not asked[key] and last[key] or copied(db.at[key]) end
  last, asked = objects, {}
  return { names = names, objects = objects }
end
function server.restore(copy)
  flush()
  for _, key in ipairs(copy.names) do
    put(db, key, copied(copy.objects[key]))
    touched[key] = true
  end
  last, asked = {}, {}
end

-- --- what has changed, for the checks ----------------------------------------------------------

local WHOLE = {
  hash = function(key) return server.commands.HGETALL(key) end,
  zset = function(key) return server.commands.ZRANGE(key, '0', '-1', 'WITHSCORES') end,
  set = function(key) return server.commands.SMEMBERS(key) end,
  list = function(key) return server.commands.LRANGE(key, '0', '-1') end,
  string = function(key) return server.commands.GET(key) end,
  stream = function(key) return server.commands.XLEN(key) end,
}

-- Whether all keys had gone since the last call, and each key that may have changed: its type (none: it is gone), its value, and
-- whether it expires. Nobody is asked for keys by this.
function server.changed()
  local rows, now = { emptied and 1 or 0 }, server.now_ms
  local before, before_touched = asked, touched
  asked, touched = {}, {}
  for i = 1, db.last do
    local key = db.order[i]
    local expires = key and db.at[key].expires
    if expires and expires <= now then before_touched[key] = true end
  end
  for key in pairs(before_touched) do
    local object = find(key)
    local kind = object and object.kind or 'none'
    local whole = WHOLE[kind]
    rows[#rows + 1] = { key, kind, whole and whole(key) or '', object and object.expires and object.expires > now and 1 or 0 }
  end
  asked, touched, emptied = before, {}, false
  return rows
end
