-- Strings: texts and counters.
local server = ...
local add, fail, find, integer, store = server.add, server.fail, server.find, server.integer, server.store
local upper = string.upper

local function get(key)
  local object = find(key, 'string')
  return object and object.text or false
end
add('GET', 2, get)

add('MGET', -2, function(...)
  local texts = {}
  for i = 1, select('#', ...) do
    local object = find((select(i, ...)))
    texts[i] = object and object.kind == 'string' and object.text or false
  end
  return texts
end)

-- When it expires, from a number of seconds or milliseconds that is 1 or more.
local UNITS = { EX = 1000, PX = 1, EXAT = 1000, PXAT = 1 }
local function expiry(option, text)
  if not text then fail(server.SYNTAX) end
  local n = integer(text)
  if n <= 0 then fail("ERR invalid expire time in 'set' command") end
  return n * UNITS[option] + (#option == 2 and server.now_ms or 0)
end

local function set(key, text, ...)
  local options, i, chosen, unit, amount = { ... }, 1, {}, nil, nil
  while options[i] do
    local option = upper(options[i])
    if UNITS[option] and not unit and not chosen.KEEPTTL and options[i + 1] then
      unit, amount, i = option, options[i + 1], i + 1
    elseif option == 'NX' and not chosen.XX or option == 'XX' and not chosen.NX or option == 'GET'
      or option == 'KEEPTTL' and not unit then
      chosen[option] = true
    else fail(server.SYNTAX) end
    i = i + 1
  end
  local expires = unit and expiry(unit, amount)
  local object = find(key)
  local before = chosen.GET and get(key)
  if chosen.NX and object or chosen.XX and not object then return before or false end
  if chosen.KEEPTTL then expires = object and object.expires end
  store(key, { kind = 'string', text = text, expires = expires or nil })
  if expires and expires <= server.now_ms then server.drop(key) end
  if chosen.GET then return before end
  return server.OK
end
add('SET', -3, set)
add('SETNX', 3, function(key, text)
  if find(key) then return 0 end
  store(key, { kind = 'string', text = text })
  return 1
end)
add('SETEX', 4, function(key, s, text)
  local n = integer(s)
  if n <= 0 then fail("ERR invalid expire time in 'setex' command") end
  return set(key, text, 'EX', s)
end)

local function increase(key, more)
  local object = find(key, 'string')
  local n = server.sum(integer(object and object.text or '0'), more)
  if object then object.text = server.plain(n) else store(key, { kind = 'string', text = server.plain(n) }) end
  return n
end
add('INCRBY', 3, function(key, more) return increase(key, integer(more)) end)
add('DECRBY', 3, function(key, less) return increase(key, -integer(less)) end)
add('INCR', 2, function(key) return increase(key, 1) end)
add('DECR', 2, function(key) return increase(key, -1) end)
add('STRLEN', 2, function(key) return #(get(key) or '') end)
add('APPEND', 3, function(key, text)
  local object = find(key, 'string') or store(key, { kind = 'string', text = '' })
  object.text = object.text .. text
  return #object.text
end)
