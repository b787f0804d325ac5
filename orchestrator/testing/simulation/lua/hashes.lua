-- Hashes.
local server = ...
local add, find, find_or_make, integer, put, take_from = server.add, server.find, server.find_or_make, server.integer, server.put, server.take_from

local function set(key, ...)
  local n = select('#', ...)
  local hash = find_or_make(key, 'hash')
  local before = hash.n
  if n == 2 then
    put(hash, ...)
  else
    local words = { ... }
    for i = 1, n, 2 do put(hash, words[i], words[i + 1]) end
  end
  return hash.n - before
end
add('HSET', -4, function(key, ...)
  if select('#', ...) % 2 == 1 then server.wrong_number('HSET') end
  return set(key, ...)
end)
add('HMSET', -4, function(key, ...)
  if select('#', ...) % 2 == 1 then server.wrong_number('HMSET') end
  set(key, ...)
  return server.OK
end)
add('HSETNX', 4, function(key, name, value)
  local hash = find(key, 'hash')
  if hash and hash.at[name] ~= nil then return 0 end
  return set(key, name, value)
end)

add('HGET', 3, function(key, name)
  local hash = find(key, 'hash')
  return hash and hash.at[name] or false
end)
add('HMGET', -3, function(key, ...)
  local hash, values = find(key, 'hash'), { ... }
  local at = hash and hash.at or {}
  for i = 1, #values do values[i] = at[values[i]] or false end
  return values
end)

-- The fields, in the order of insertion, as `show(fields, name, value)` appends them.
local function all(key, show)
  local hash, fields = find(key, 'hash'), {}
  if hash then
    local order, at = hash.order, hash.at
    for i = 1, hash.last do
      local name = order[i]
      if name then show(fields, name, at[name]) end
    end
  end
  return fields
end
local function both(fields, name, value)
  local n = #fields
  fields[n + 1], fields[n + 2] = name, value
end
add('HGETALL', 2, function(key) return all(key, both) end)
add('HKEYS', 2, function(key) return all(key, function(fields, name) fields[#fields + 1] = name end) end)
add('HVALS', 2, function(key) return all(key, function(fields, _, value) fields[#fields + 1] = value end) end)
add('HSCAN', -3, function(key, cursor, ...)
  server.check_cursor(cursor)
  if not find(key, 'hash') then return { '0', {} } end
  local pattern = server.scan_options({ ... })
  return { '0', all(key, function(fields, name, value)
    if string.find(name, pattern) then both(fields, name, value) end
  end) }
end)

add('HLEN', 2, function(key)
  local hash = find(key, 'hash')
  return hash and hash.n or 0
end)
add('HEXISTS', 3, function(key, name)
  local hash = find(key, 'hash')
  return hash and hash.at[name] ~= nil and 1 or 0
end)
add('HSTRLEN', 3, function(key, name)
  local hash = find(key, 'hash')
  return #(hash and hash.at[name] or '')
end)
add('HDEL', -3, function(key, ...)
  local hash, gone = find(key, 'hash'), 0
  for i = 1, hash and select('#', ...) or 0 do
    if take_from(key, hash, (select(i, ...))) then gone = gone + 1 end
  end
  return gone
end)
add('HINCRBY', 4, function(key, name, more)
  local amount = integer(more)
  local hash = find(key, 'hash')
  local n = server.sum(integer(hash and hash.at[name] or '0', 'ERR hash value is not an integer'), amount)
  put(hash or find_or_make(key, 'hash'), name, server.plain(n))
  return n
end)
