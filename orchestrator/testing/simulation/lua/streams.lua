-- Streams: entries in the order of their ids, which are pairs of numbers below 2^53.
local server = ...
local add, fail, find, integer = server.add, server.fail, server.find, server.integer
local floor, match, upper, sub = math.floor, string.match, string.upper, string.sub

local TOP = 2 ^ 53
local BAD_ID = 'ERR Invalid stream ID specified as stream command argument'

-- --- lines: what has an id (`ms`, `seq`), in the order of the ids, from `first` to `last` ----------

function server.line() return { first = 1, last = 0 } end

-- The first place that is at this id or behind it.
local function place(line, ms, seq)
  local low, high = line.first, line.last + 1
  while low < high do
    local middle = floor((low + high) / 2)
    local other = line[middle]
    if other.ms < ms or other.ms == ms and other.seq < seq then low = middle + 1 else high = middle end
  end
  return low
end
server.place = place

-- What has exactly this id, and its place.
function server.at_id(line, ms, seq)
  local i = place(line, ms, seq)
  local part = line[i]
  if part and part.ms == ms and part.seq == seq then return part, i end
end

function server.insert(line, part)
  local i = place(line, part.ms, part.seq)
  for k = line.last, i, -1 do line[k + 1] = line[k] end
  line[i], line.last = part, line.last + 1
end

-- Moves whichever end is nearer.
function server.remove(line, i)
  if i - line.first < line.last - i then
    for k = i, line.first + 1, -1 do line[k] = line[k - 1] end
    line[line.first], line.first = nil, line.first + 1
  else
    for k = i, line.last - 1 do line[k] = line[k + 1] end
    line[line.last], line.last = nil, line.last - 1
  end
end

function server.length(line) return line.last - line.first + 1 end

-- --- ids ------------------------------------------------------------------------------------------

local function small(text)
  local n = tonumber(text)
  if n >= TOP then
    if text == '18446744073709551615' then return TOP end
    if n >= 2 ^ 64 then fail(BAD_ID) end
    fail('ERR the simulated server has ids below 2^53 only, and not ' .. text)
  end
  return n
end
local function id_of(text, missing)
  local ms, seq = match(text, '^(%d+)%-(%d+)$')
  if not ms then ms = match(text, '^%d+$') or fail(BAD_ID) end
  return small(ms), seq and small(seq) or missing or 0
end
server.id_of = id_of

local function name_of(ms, seq) return string.format('%.0f-%.0f', ms, seq) end
server.name_of = name_of
-- Whether one id comes behind another.
local function behind(ms, seq, other_ms, other_seq) return ms > other_ms or ms == other_ms and seq > other_seq end
server.behind = behind

-- The first id of a range that starts here, or the last one of a range that ends here.
local function edge(text, is_start)
  if text == '-' then return 0, 0 elseif text == '+' then return TOP, TOP end
  if sub(text, 1, 1) ~= '(' then return id_of(text, is_start and 0 or TOP) end
  local ms, seq = id_of(sub(text, 2), is_start and 0 or TOP)
  if is_start then
    if seq < TOP then return ms, seq + 1 end
    return ms + 1, 0
  end
  if seq > 0 then return ms, seq - 1 end
  if ms == 0 then fail('ERR invalid end ID for the interval') end
  return ms - 1, TOP
end
server.edge = edge

-- --- entries --------------------------------------------------------------------------------------

function server.stream_of(key)
  return find(key, 'stream') or server.store(key, {
    kind = 'stream', entries = server.line(), ms = 0, seq = 0, added = 0, gone_ms = 0, gone_seq = 0, groups = {}, group_names = {},
  })
end

local function shown(entry) return { entry.id, entry.fields } end
server.shown = shown

-- `MAXLEN` or `MINID` of an option that trims, how many words it has, and its limit. A trim with `~` is as exact as one without.
local function trim_option(words, i)
  local how, k = upper(words[i]), i + 1
  if words[k] == '~' or words[k] == '=' then k = k + 1 end
  if not words[k] then fail(server.SYNTAX) end
  if how == 'MAXLEN' then
    local most = integer(words[k])
    if most < 0 then fail('ERR The MAXLEN argument must be >= 0.') end
    return how, k - i + 1, most
  end
  local ms, seq = id_of(words[k])
  return how, k - i + 1, ms, seq
end
local function trim(stream, how, limit, seq)
  local entries = stream.entries
  local keep = how == 'MAXLEN' and math.max(entries.first, entries.last - limit + 1) or how == 'MINID' and place(entries, limit, seq)
  local gone = keep - entries.first
  for i = entries.first, keep - 1 do entries[i] = nil end
  entries.first = keep
  return gone
end

-- The id of a new entry: `*`, `5-*`, or as it is given.
local function next_id(stream, ms, seq, any_seq)
  if not ms then
    ms = math.max(server.now_ms, stream.ms)
    return ms, ms == stream.ms and stream.seq + 1 or 0
  end
  if any_seq then return ms, ms == stream.ms and stream.seq + 1 or 0 end
  return ms, seq
end

add('XADD', -5, function(key, ...)
  local words, i, stays, how, limit, limit_seq = { ... }, 1, false, nil, nil, nil
  while true do
    local option = upper(words[i] or '')
    if option == 'NOMKSTREAM' then stays, i = true, i + 1
    elseif option == 'MAXLEN' or option == 'MINID' then
      local size
      how, size, limit, limit_seq = trim_option(words, i)
      i = i + size
    else break end
  end
  local ms, seq, any_seq
  if words[i] ~= '*' then
    local front = match(words[i] or '', '^(%d+)%-%*$')
    if front then ms, any_seq = small(front), true else ms, seq = id_of(words[i] or '') end
  end
  local n = #words - i
  if n < 2 or n % 2 == 1 then server.wrong_number('XADD') end
  if ms == 0 and seq == 0 then fail('ERR The ID specified in XADD must be greater than 0-0') end
  local stream = find(key, 'stream')
  if not stream and stays then return false end
  stream = stream or server.stream_of(key)
  ms, seq = next_id(stream, ms, seq, any_seq)
  if not behind(ms, seq, stream.ms, stream.seq) then
    fail('ERR The ID specified in XADD is equal or smaller than the target stream top item')
  end
  local fields = {}
  for k = 1, n do fields[k] = words[i + k] end
  local entries, id = stream.entries, name_of(ms, seq)
  stream.ms, stream.seq, stream.added = ms, seq, stream.added + 1
  entries.last = entries.last + 1
  entries[entries.last] = { ms = ms, seq = seq, id = id, fields = fields }
  server.added = server.added + 1
  if how then trim(stream, how, limit, limit_seq) end
  return id
end)
add('XLEN', 2, function(key)
  local stream = find(key, 'stream')
  return stream and server.length(stream.entries) or 0
end)
add('XTRIM', -4, function(key, ...)
  local how = upper(...)
  if how ~= 'MAXLEN' and how ~= 'MINID' then fail(server.SYNTAX) end
  local _, size, limit, seq = trim_option({ ... }, 1)
  if size ~= select('#', ...) then fail(server.SYNTAX) end
  local stream = find(key, 'stream')
  return stream and trim(stream, how, limit, seq) or 0
end)
add('XDEL', -3, function(key, ...)
  local stream = find(key, 'stream')
  if not stream then return 0 end
  local ids, gone = { ... }, 0
  for i = 1, #ids do ids[i] = { id_of(ids[i]) } end
  for _, id in ipairs(ids) do
    local entry, i = server.at_id(stream.entries, id[1], id[2])
    if entry then
      server.remove(stream.entries, i)
      gone = gone + 1
      if behind(entry.ms, entry.seq, stream.gone_ms, stream.gone_seq) then stream.gone_ms, stream.gone_seq = entry.ms, entry.seq end
    end
  end
  return gone
end)

local function count_of(word, count, more)
  if not word then return nil end
  if upper(word) ~= 'COUNT' or not count or more then fail(server.SYNTAX) end
  return math.max(0, integer(count))
end
local function range(key, from, till, backwards, ...)
  local ms, seq = edge(from, true)
  local last_ms, last_seq = edge(till, false)
  local most = count_of(...)
  local stream, rows = find(key, 'stream'), {}
  if not stream then return rows end
  if most == 0 then return false end
  local entries = stream.entries
  local low = place(entries, ms, seq)
  local high = place(entries, last_ms, last_seq)
  if not server.at_id(entries, last_ms, last_seq) then high = high - 1 end
  local step = 1
  if backwards then low, high, step = high, low, -1 end
  for i = low, high, step do
    if #rows == most then break end
    rows[#rows + 1] = shown(entries[i])
  end
  return rows
end
add('XRANGE', -4, function(key, from, till, ...) return range(key, from, till, false, ...) end)
add('XREVRANGE', -4, function(key, till, from, ...) return range(key, from, till, true, ...) end)

-- --- reading --------------------------------------------------------------------------------------

-- The options of XREAD and XREADGROUP, and where the keys begin; as many ids follow them. Nobody waits here: whoever sends a
-- BLOCK decides what happens until there is an entry.
function server.read_options(name, words)
  local options, i = {}, 1
  while true do
    local option = upper(words[i] or fail(server.SYNTAX))
    if option == 'STREAMS' then break
    elseif option == 'COUNT' and words[i + 1] then options.count, i = integer(words[i + 1]), i + 2
    elseif option == 'BLOCK' and words[i + 1] then
      if integer(words[i + 1], 'ERR timeout is not an integer or out of range') < 0 then fail('ERR timeout is negative') end
      i = i + 2
    elseif option == 'GROUP' and name == 'XREADGROUP' and words[i + 2] then
      options.group, options.consumer, i = words[i + 1], words[i + 2], i + 3
    else fail(server.SYNTAX) end
  end
  if options.count and options.count <= 0 then options.count = nil end
  local n = #words - i
  if n == 0 or n % 2 == 1 then
    fail("ERR Unbalanced '" .. string.lower(name) .. "' list of streams: for each stream key an ID or '"
      .. (name == 'XREAD' and '$' or '>') .. "' must be specified.")
  end
  return options, i, n / 2
end

-- Entries behind an id, up to a count.
function server.entries_after(stream, ms, seq, count)
  local entries, rows = stream.entries, {}
  for i = place(entries, ms, seq + 1), entries.last do
    if #rows == count then break end
    rows[#rows + 1] = shown(entries[i])
  end
  return rows
end

add('XREAD', -4, function(...)
  local words, answers = { ... }, {}
  local options, first, n = server.read_options('XREAD', words)
  local ids = {}
  for k = 1, n do
    local id = words[first + n + k]
    local stream = find(words[first + k], 'stream')
    if id == '$' then ids[k] = stream and { stream.ms, stream.seq } or { 0, 0 } else ids[k] = { id_of(id) } end
  end
  for k = 1, n do
    local key = words[first + k]
    local stream = find(key, 'stream')
    local rows = stream and server.entries_after(stream, ids[k][1], ids[k][2], options.count) or {}
    if #rows > 0 then answers[#answers + 1] = { key, rows } end
  end
  return #answers > 0 and answers or false
end)
