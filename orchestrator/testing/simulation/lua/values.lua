-- What all commands share: errors, numbers as texts, and maps that keep the order in which names came.
-- Every file gets the same table, to which it adds its part: `commands` by name, and functions for the files after it.
local server = ...
local floor, format, gsub, find, sub = math.floor, string.format, string.gsub, string.find, string.sub

server.commands = {}
-- How many words a command has at least and at most, its name among them; and of those whose second word says what is meant,
-- how many each has; negative: that many or more.
server.least, server.most, server.parts = {}, {}, {}
server.OK = { ok = 'OK' }
server.WRONG_TYPE = 'WRONGTYPE Operation against a key holding the wrong kind of value'
server.NO_INTEGER = 'ERR value is not an integer or out of range'
server.SYNTAX = 'ERR syntax error'

-- Adds a command with its number of words; of one whose second word says what is meant, with a table of both for each.
function server.add(name, arity, run)
  server.commands[name] = run
  if type(arity) == 'table' then server.parts[name], arity = arity, -2 end
  server.least[name], server.most[name] = math.abs(arity), arity > 0 and arity or math.huge
end

-- The name of the command that cannot have so many words; nil: it can.
function server.misfit(name, n, second)
  if n < server.least[name] or n > server.most[name] then return name end
  local wanted = server.parts[name] and server.parts[name][string.upper(second)]
  if wanted and n ~= wanted and (wanted > 0 or n < -wanted) then return name .. '|' .. second end
end

local function fail(text) error({ err = text }, 0) end
server.fail = fail

function server.wrong_number(name) fail("ERR wrong number of arguments for '" .. string.lower(name) .. "' command") end

-- Numbers are doubles here: one that has no exact double is refused instead of rounded.
local EXACT = 2 ^ 53

function server.integer(text, wrong)
  local n = find(text, '^-?%d+$') and not find(text, '^-?0%d') and text ~= '-0' and tonumber(text)
  if not n or n >= 2 ^ 63 or n < -2 ^ 63 then fail(wrong or server.NO_INTEGER) end
  if n > EXACT or n < -EXACT then fail('ERR the simulated server counts to 2^53 only, and not to ' .. text) end
  return n
end

function server.sum(a, b)
  local n = a + b
  if n > EXACT or n < -EXACT then fail('ERR increment or decrement would overflow') end
  return n
end

function server.float(text, wrong)
  local lower = string.lower(text)
  if lower == 'inf' or lower == '+inf' or lower == 'infinity' or lower == '+infinity' then return math.huge end
  if lower == '-inf' or lower == '-infinity' then return -math.huge end
  local n = find(text, '^[+-]?[%d.]') and tonumber(text)
  if not n then fail(wrong or 'ERR value is not a valid float') end
  return n
end

-- A whole number as text.
local function plain(n)
  if n == 0 then return '0' end
  return format('%.0f', n)
end
server.plain = plain

-- A number as the server writes it: the fewest digits that stand for it.
function server.number(n)
  if n == math.huge then return 'inf' elseif n == -math.huge then return '-inf' elseif n ~= n then return 'nan' end
  if n == floor(n) and n <= 2 ^ 62 and n >= -2 ^ 62 then
    if n == 0 and 1 / n < 0 then return '-0' end
    return plain(n)
  end
  local text
  for digits = 14, 16 do
    text = format('%.' .. digits .. 'e', n)
    if tonumber(text) == n then break end
  end
  local sign, first, more, exponent = string.match(text, '^(-?)(%d)%.(%d-)0*e([+-]%d+)$')
  local digits = first .. more
  local shift = tonumber(exponent) - #more
  local size = math.abs(shift + #digits - 1)
  if shift >= 0 and size < #digits + (sign == '-' and 6 or 7) then return sign .. digits .. string.rep('0', shift) end
  if shift < 0 and (shift > -7 or size < 4) then
    local point = #digits + shift
    if point <= 0 then return sign .. '0.' .. string.rep('0', -point) .. digits end
    return sign .. sub(digits, 1, point) .. '.' .. sub(digits, point + 1)
  end
  local way = shift + #digits - 1 < 0 and '-' or '+'
  return sign .. first .. (more ~= '' and '.' .. more or '') .. 'e' .. way .. plain(size)
end

-- --- maps in the order of insertion ---------------------------------------------------------------

-- `at`: name to value; `order`: the names, false where one was removed; `place`: where a name stands; `n` names, up to `last`.
function server.map(kind) return { kind = kind, n = 0, last = 0, at = {}, order = {}, place = {} } end

function server.put(map, name, value)
  local at = map.at
  if at[name] == nil then
    local last = map.last + 1
    map.n, map.last = map.n + 1, last
    map.order[last], map.place[name] = name, last
  end
  at[name] = value
end

local function compact(map)
  local order, place, last = {}, {}, 0
  for i = 1, map.last do
    local name = map.order[i]
    if name then
      last = last + 1
      order[last], place[name] = name, last
    end
  end
  map.order, map.place, map.last = order, place, last
end

-- Removes a name; whether it was there.
function server.take(map, name)
  if map.at[name] == nil then return false end
  map.at[name] = nil
  map.order[map.place[name]] = false
  map.place[name] = nil
  map.n = map.n - 1
  if map.last > 2 * map.n + 16 then compact(map) end
  return true
end

function server.names(map)
  local names, n = {}, 0
  for i = 1, map.last do
    local name = map.order[i]
    if name then
      n = n + 1
      names[n] = name
    end
  end
  return names
end

-- --- patterns, and parts of lists -----------------------------------------------------------------

local patterns = {}

local function escaped(c) return (gsub(c, '[^%w]', function(one) return one == '\0' and '%z' or '%' .. one end)) end

-- The pattern of Lua for one of Redis: `*`, `?`, `[a-c]`, `[^a]`, `\x`.
function server.pattern(glob)
  if patterns[glob] then return patterns[glob] end
  local parts, i = { '^' }, 1
  while i <= #glob do
    local c = sub(glob, i, i)
    if c == '*' then parts[#parts + 1] = '.*'
    elseif c == '?' then parts[#parts + 1] = '.'
    elseif c == '[' then
      local stop = find(glob, ']', i + 1, true) or #glob + 1
      local inside = gsub(sub(glob, i + 1, stop - 1), '[^%w%-%^]', escaped)
      parts[#parts + 1] = '[' .. inside .. ']'
      i = stop
    else
      if c == '\\' and i < #glob then
        i = i + 1
        c = sub(glob, i, i)
      end
      parts[#parts + 1] = escaped(c)
    end
    i = i + 1
  end
  patterns[glob] = table.concat(parts) .. '$'
  return patterns[glob]
end

-- From the `first` to the `last` of `n`, as Redis counts: from 0 on, and from the end below 0. Counted from 1 here.
function server.bounds(n, first, last)
  if first < 0 then first = math.max(0, n + first) end
  if last < 0 then last = n + last end
  return first + 1, math.min(last, n - 1) + 1
end

function server.check_cursor(cursor)
  if not find(cursor, '^%d+$') or #cursor > 19 then fail('ERR invalid cursor') end
end

local TYPES = { string = true, list = true, set = true, zset = true, hash = true, stream = true }

-- The options of a scan: the pattern, and the type. A scan comes to its end at once.
function server.scan_options(options)
  local pattern, kind, i = '', nil, 1
  while options[i] do
    local option, value = string.upper(options[i]), options[i + 1]
    if not value then fail(server.SYNTAX) end
    if option == 'MATCH' then pattern = server.pattern(value)
    elseif option == 'COUNT' then
      if server.integer(value) < 1 then fail(server.SYNTAX) end
    elseif option == 'TYPE' then
      kind = string.lower(value)
      if not TYPES[kind] then fail("ERR unknown type name '" .. value .. "'") end
    else fail(server.SYNTAX) end
    i = i + 2
  end
  return pattern, kind
end
