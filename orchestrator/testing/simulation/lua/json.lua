-- JSON as lua-cjson reads and writes it, error texts included; the fields of an object come in the order of `pairs`, as there.
local server = ...
local byte, char, concat, find, floor, format, gsub, match, sub = string.byte, string.char, table.concat, string.find, math.floor,
  string.format, string.gsub, string.match, string.sub

local DEEPEST = 1000
local null = newproxy(true)
getmetatable(null).__tostring = function() return 'userdata: (nil)' end

-- Errors go through pcall, so that the place in them is that of the script which called.
local function wrong(text) error({ text = text }) end

-- --- writing --------------------------------------------------------------------------------------

local ESCAPES = { ['"'] = '\\"', ['\\'] = '\\\\', ['/'] = '\\/', ['\b'] = '\\b', ['\f'] = '\\f', ['\n'] = '\\n', ['\r'] = '\\r', ['\t'] = '\\t' }
local ODD = '[%z\1-\31"\\/\127]'
local function escape(c) return ESCAPES[c] or format('\\u%04x', byte(c)) end
local function quoted(text)
  if not find(text, ODD) then return '"' .. text .. '"' end
  return '"' .. gsub(text, ODD, escape) .. '"'
end

-- How many values a table has as a list, gaps among them; nil: it is none.
local function list_length(value)
  local most, n = 0, 0
  for key in next, value do
    if type(key) ~= 'number' or key <= 0 or key ~= floor(key) then return nil end
    if key > most then most = key end
    n = n + 1
  end
  if most > 10 and most > n * 2 then wrong('Cannot serialise table: excessively sparse array') end
  return most
end

local function written(n)
  if n ~= n or n == math.huge or n == -math.huge then wrong('Cannot serialise number: must not be NaN or Inf') end
  return format('%.14g', n)
end

-- The names of fields, as they are written; they come again and again.
local NAMES, known_names = {}, 0
local function name_of(key)
  local name = NAMES[key]
  if name then return name end
  local kind = type(key)
  if kind == 'number' then return '"' .. written(key) .. '":' end
  if kind ~= 'string' then wrong('Cannot serialise ' .. kind .. ': table key must be a number or string') end
  name = quoted(key) .. ':'
  if known_names < 1000 then NAMES[key], known_names = name, known_names + 1 end
  return name
end

-- Appends a value behind the `n` parts so far; how many parts there are then.
local append
local function append_table(parts, n, value, depth)
  if depth > DEEPEST then wrong('Cannot serialise, excessive nesting (' .. depth .. ')') end
  local size = list_length(value)
  if size and size > 0 then
    for i = 1, size do
      parts[n + 1] = i == 1 and '[' or ','
      n = append(parts, n + 1, value[i], depth)
    end
    parts[n + 1] = ']'
    return n + 1
  end
  n = n + 1
  parts[n] = '{'
  local first = n
  for key, part in next, value do
    if n > first then
      n = n + 1
      parts[n] = ','
    end
    parts[n + 1] = name_of(key)
    if type(part) == 'string' then
      parts[n + 2] = quoted(part)
      n = n + 2
    else
      n = append(parts, n + 1, part, depth)
    end
  end
  parts[n + 1] = '}'
  return n + 1
end
function append(parts, n, value, depth)
  local kind, text = type(value), nil
  if kind == 'string' then text = quoted(value)
  elseif kind == 'number' then text = written(value)
  elseif kind == 'boolean' then text = value and 'true' or 'false'
  elseif kind == 'table' then return append_table(parts, n, value, depth + 1)
  elseif value == nil or value == null then text = 'null'
  else wrong('Cannot serialise ' .. kind .. ': type not supported') end
  parts[n + 1] = text
  return n + 1
end
local function encoded(value)
  local parts = {}
  return concat(parts, '', 1, append(parts, 0, value, 0))
end

-- --- reading --------------------------------------------------------------------------------------

local function unexpected(wanted, thing, at) wrong('Expected ' .. wanted .. ' but found ' .. thing .. ' at character ' .. at) end

local TOKENS = { ['{'] = 'T_OBJ_BEGIN', ['}'] = 'T_OBJ_END', ['['] = 'T_ARR_BEGIN', [']'] = 'T_ARR_END', [':'] = 'T_COLON', [','] = 'T_COMMA',
  [''] = 'T_END' }
local PLAIN = { b = '\b', f = '\f', n = '\n', r = '\r', t = '\t', ['"'] = '"', ['\\'] = '\\', ['/'] = '/' }
local WORDS = { t = 'true', f = 'false', n = 'null' }

local function utf8(code)
  if code < 0x80 then return char(code)
  elseif code < 0x800 then return char(0xC0 + floor(code / 64), 0x80 + code % 64)
  elseif code < 0x10000 then return char(0xE0 + floor(code / 4096), 0x80 + floor(code / 64) % 64, 0x80 + code % 64) end
  return char(0xF0 + floor(code / 262144), 0x80 + floor(code / 4096) % 64, 0x80 + floor(code / 64) % 64, 0x80 + code % 64)
end

-- The character of `\uXXXX` at a backslash, and the place behind it.
local function unicode(text, at, wanted)
  local code = tonumber(match(text, '^u(%x%x%x%x)', at + 1) or unexpected(wanted, 'invalid unicode escape code', at), 16)
  if code < 0xD800 or code > 0xDFFF then return utf8(code), at + 6 end
  local low = tonumber(match(text, '^\\u(%x%x%x%x)', at + 6) or '0', 16)
  if code > 0xDBFF or low < 0xDC00 or low > 0xDFFF then unexpected(wanted, 'invalid unicode escape code', at) end
  return utf8(0x10000 + (code - 0xD800) * 1024 + low - 0xDC00), at + 12
end

-- A text, from behind its first quotation mark, and the place behind its last one.
local function read_text(text, at, wanted)
  local stop = find(text, '["\\]', at)
  if stop and byte(text, stop) == 34 then return sub(text, at, stop - 1), stop + 1 end
  local parts = {}
  while stop do
    parts[#parts + 1] = sub(text, at, stop - 1)
    if byte(text, stop) == 34 then return concat(parts), stop + 1 end
    local c = sub(text, stop + 1, stop + 1)
    if c == 'u' then
      parts[#parts + 1], at = unicode(text, stop, wanted)
    else
      parts[#parts + 1] = PLAIN[c] or unexpected(wanted, 'invalid escape code', stop)
      at = stop + 2
    end
    stop = find(text, '["\\]', at)
  end
  unexpected(wanted, 'unexpected end of string', #text + 1)
end

local function read_number(text, at, wanted)
  local _, stop = find(text, '^[+-]?%d+%.?%d*', at)
  if not stop then unexpected(wanted, find(text, '^%-', at) and 'invalid number' or 'invalid token', at) end
  local _, more = find(text, '^[eE][+-]?%d+', stop + 1)
  stop = more or stop
  return tonumber(sub(text, at, stop)), stop + 1
end

-- Says what stands where something else was expected; a text or number that is none says that itself.
local function misplaced(text, at, wanted)
  local c = sub(text, at, at)
  local thing = TOKENS[c]
  if c == '"' then
    read_text(text, at + 1, wanted)
    thing = 'T_STRING'
  elseif find(c, '[%d+-]') then
    read_number(text, at, wanted)
    thing = 'T_NUMBER'
  elseif WORDS[c] and sub(text, at, at + #WORDS[c] - 1) == WORDS[c] then
    thing = c == 'n' and 'T_NULL' or 'T_BOOLEAN'
  end
  unexpected(wanted, thing or 'invalid token', at)
end

local function skip(text, at) return find(text, '[^ \t\r\n]', at) or #text + 1 end

local read_value
local function read_object(text, at, depth)
  local object = {}
  at = skip(text, at)
  if byte(text, at) == 125 then return object, at + 1 end
  while true do
    if byte(text, at) ~= 34 then misplaced(text, at, 'object key string') end
    local key
    key, at = read_text(text, at + 1, 'object key string')
    at = skip(text, at)
    if byte(text, at) ~= 58 then misplaced(text, at, 'colon') end
    object[key], at = read_value(text, skip(text, at + 1), depth)
    at = skip(text, at)
    local c = byte(text, at)
    if c == 125 then return object, at + 1 elseif c ~= 44 then misplaced(text, at, 'comma or object end') end
    at = skip(text, at + 1)
  end
end
local function read_list(text, at, depth)
  local list, n = {}, 0
  at = skip(text, at)
  if byte(text, at) == 93 then return list, at + 1 end
  while true do
    n = n + 1
    list[n], at = read_value(text, at, depth)
    at = skip(text, at)
    local c = byte(text, at)
    if c == 93 then return list, at + 1 elseif c ~= 44 then misplaced(text, at, 'comma or array end') end
    at = skip(text, at + 1)
  end
end
function read_value(text, at, depth)
  local c = sub(text, at, at)
  if c == '"' then return read_text(text, at + 1, 'value')
  elseif c == '{' or c == '[' then
    if depth >= DEEPEST then wrong('Found too many nested data structures (' .. depth + 1 .. ') at character ' .. at) end
    if c == '{' then return read_object(text, at + 1, depth + 1) end
    return read_list(text, at + 1, depth + 1)
  end
  local word = WORDS[c]
  if word and sub(text, at, at + #word - 1) == word then
    if c == 'n' then return null, at + 4 end
    return c == 't', at + #word
  end
  if not find(c, '[%d+-]') then misplaced(text, at, 'value') end
  return read_number(text, at, 'value')
end
local function read(text)
  if #text >= 2 and (byte(text, 1) == 0 or byte(text, 2) == 0) then wrong('JSON parser does not support UTF-16 or UTF-32') end
  local value, at = read_value(text, skip(text, 1), 0)
  at = skip(text, at)
  if at <= #text then misplaced(text, at, 'the end') end
  return value
end

-- --- what scripts call ----------------------------------------------------------------------------

local function guarded(run, ...)
  local done, answer = pcall(run, ...)
  if done then return answer end
  error(type(answer) == 'table' and answer.text or answer, 3)
end

server.cjson = {
  null = null,
  encode = function(...)
    if select('#', ...) ~= 1 then error("bad argument #1 to 'encode' (expected 1 argument)", 2) end
    local answer = guarded(encoded, (...))
    return answer
  end,
  decode = function(...)
    local text = ...
    if select('#', ...) ~= 1 then error("bad argument #1 to 'decode' (expected 1 argument)", 2) end
    if type(text) == 'number' then text = tostring(text) end
    if type(text) ~= 'string' then error("bad argument #1 to 'decode' (string expected, got " .. type(text) .. ')', 2) end
    local answer = guarded(read, text)
    return answer
  end,
}
