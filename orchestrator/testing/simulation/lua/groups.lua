-- Consumer groups of streams: what is pending of whom, since when, and how often it was handed out.
local server = ...
local add, at_id, behind, fail, find, id_of, integer, length, place = server.add, server.at_id, server.behind, server.fail,
  server.find, server.id_of, server.integer, server.length, server.place
local upper, sort = string.upper, table.sort

local NO_KEY = 'ERR The XGROUP subcommand requires the key to exist. Note that for CREATE you may want to use the MKSTREAM option '
  .. 'to create an empty stream automatically.'

local function group_of(key, name, more)
  local stream = find(key, 'stream')
  local group = stream and stream.groups[name]
  if not group then fail("NOGROUP No such key '" .. key .. "' or consumer group '" .. name .. "'" .. (more or '')) end
  return group, stream
end

-- The consumer of this name, made where it is new: it was seen now.
local function consumer_of(group, name)
  local consumer = group.consumers[name]
  if not consumer then
    consumer = { name = name }
    group.consumers[name] = consumer
    group.consumer_names[#group.consumer_names + 1] = name
    sort(group.consumer_names)
  end
  consumer.seen = server.now_ms
  return consumer
end

local function pending_of(group, name)
  local n = 0
  for i = group.pending.first, group.pending.last do
    if group.pending[i].consumer == name then n = n + 1 end
  end
  return n
end

-- --- how far a group has read ---------------------------------------------------------------------

-- Whether entries behind this id were deleted, so that they cannot be counted.
local function has_holes(stream, ms, seq)
  if length(stream.entries) == 0 or stream.gone_ms == 0 and stream.gone_seq == 0 then return false end
  return not behind(ms, seq, stream.gone_ms, stream.gone_seq)
end
-- How many entries were ever added up to this id; nil where nobody knows.
local function added_up_to(stream, ms, seq)
  local first = stream.entries[stream.entries.first]
  if stream.added == 0 then return 0 end
  if not first and not behind(ms, seq, stream.ms, stream.seq) then return stream.added end
  if (ms > 0 or seq > 0) and behind(stream.gone_ms, stream.gone_seq, ms, seq) then return nil end
  if ms == stream.ms and seq == stream.seq then return stream.added end
  if behind(ms, seq, stream.ms, stream.seq) or not first then return nil end
  if stream.gone_ms == 0 and stream.gone_seq == 0 or behind(first.ms, first.seq, stream.gone_ms, stream.gone_seq) then
    if behind(first.ms, first.seq, ms, seq) then return stream.added - length(stream.entries) end
    if first.ms == ms and first.seq == seq then return stream.added - length(stream.entries) + 1 end
  end
  return nil
end
local function lag_of(stream, group)
  if stream.added == 0 then return 0 end
  local read = group.read
  if not read or has_holes(stream, group.ms, group.seq) then read = added_up_to(stream, group.ms, group.seq) end
  return read and stream.added - read or false
end

-- --- reading --------------------------------------------------------------------------------------

-- Hands out what the group has not read.
local function read_new(stream, group, consumer, count)
  local entries, rows = stream.entries, {}
  local oldest = entries[entries.first]
  for i = place(entries, group.ms, group.seq + 1), entries.last do
    if #rows == count then break end
    local entry = entries[i]
    local within = not behind(oldest.ms, oldest.seq, group.ms, group.seq)
    if group.read and within and not has_holes(stream, group.ms, group.seq) then group.read = group.read + 1
    else group.read = added_up_to(stream, entry.ms, entry.seq) end
    group.ms, group.seq = entry.ms, entry.seq
    local old = at_id(group.pending, entry.ms, entry.seq)
    if old then
      old.consumer, old.at, old.count = consumer.name, server.now_ms, 1
    else
      server.insert(group.pending,
        { ms = entry.ms, seq = entry.seq, id = entry.id, consumer = consumer.name, at = server.now_ms, count = 1 })
    end
    rows[#rows + 1] = server.shown(entry)
    consumer.active = server.now_ms
  end
  return rows
end
-- What is pending of a consumer; nil stands for the fields of an entry that is gone.
local function read_again(stream, group, consumer, ms, seq, count)
  local pending, rows = group.pending, {}
  for i = place(pending, ms, seq + 1), pending.last do
    if #rows == count then break end
    if pending[i].consumer == consumer.name then
      local entry = at_id(stream.entries, pending[i].ms, pending[i].seq)
      rows[#rows + 1] = entry and server.shown(entry) or { pending[i].id, false }
      if entry then pending[i].at, pending[i].count = server.now_ms, pending[i].count + 1 end
    end
  end
  return rows
end

add('XREADGROUP', -7, function(...)
  local words, answers = { ... }, {}
  local options, first, n = server.read_options('XREADGROUP', words)
  if not options.group then fail('ERR Missing GROUP option for XREADGROUP') end
  local groups, streams = {}, {}
  for k = 1, n do
    local id = words[first + n + k]
    groups[k], streams[k] = group_of(words[first + k], options.group, ' in XREADGROUP with GROUP option')
    if id == '$' then fail('ERR The $ ID is meaningless in the context of XREADGROUP: you want to read the history of this consumer by '
      .. 'specifying a proper ID, or use the > ID to get new messages. The $ ID would just return an empty result set.') end
    if id ~= '>' then id_of(id) end
  end
  for k = 1, n do
    local id, group, stream = words[first + n + k], groups[k], streams[k]
    local consumer = consumer_of(group, options.consumer)
    local rows
    if id ~= '>' then
      local ms, seq = id_of(id)
      rows = read_again(stream, group, consumer, ms, seq, options.count)
    elseif behind(stream.ms, stream.seq, group.ms, group.seq) then
      rows = read_new(stream, group, consumer, options.count)
    end
    if rows and (#rows > 0 or id ~= '>') then answers[#answers + 1] = { words[first + k], rows } end
  end
  return #answers > 0 and answers or false
end)
add('XACK', -4, function(key, name, ...)
  local stream = find(key, 'stream')
  local group = stream and stream.groups[name]
  if not group then return 0 end
  local ids, gone = { ... }, 0
  for i = 1, #ids do ids[i] = { id_of(ids[i]) } end
  for _, id in ipairs(ids) do
    local pending, i = at_id(group.pending, id[1], id[2])
    if pending then
      server.remove(group.pending, i)
      gone = gone + 1
    end
  end
  return gone
end)

-- --- groups and consumers -------------------------------------------------------------------------

local function create(key, name, id, ...)
  local makes, read, words, i = false, nil, { ... }, 1
  while words[i] do
    local option = upper(words[i])
    if option == 'MKSTREAM' then makes = true
    elseif option == 'ENTRIESREAD' and words[i + 1] then
      i = i + 1
      read = integer(words[i])
    else fail("ERR unknown subcommand or wrong number of arguments for 'CREATE'. Try XGROUP HELP.") end
    i = i + 1
  end
  local stream = find(key, 'stream')
  if not stream and not makes then fail(NO_KEY) end
  local ms, seq = stream and stream.ms or 0, stream and stream.seq or 0
  if id ~= '$' then ms, seq = id_of(id) end
  stream = stream or server.stream_of(key)
  if stream.groups[name] then fail('BUSYGROUP Consumer Group name already exists') end
  stream.groups[name] = { ms = ms, seq = seq, read = read, pending = server.line(), consumers = {}, consumer_names = {} }
  stream.group_names[#stream.group_names + 1] = name
  sort(stream.group_names)
  return server.OK
end
local function known(key, name)
  local stream = find(key, 'stream') or fail(NO_KEY)
  return stream.groups[name] or fail("NOGROUP No such consumer group '" .. name .. "' for key name '" .. key .. "'"), stream
end
local function without(names, name)
  for i, other in ipairs(names) do
    if other == name then return table.remove(names, i) end
  end
end

local XGROUP = {
  CREATE = create,
  DESTROY = function(key, name)
    local stream = find(key, 'stream') or fail(NO_KEY)
    if not stream.groups[name] then return 0 end
    stream.groups[name] = nil
    without(stream.group_names, name)
    return 1
  end,
  CREATECONSUMER = function(key, name, consumer)
    local group = known(key, name)
    if group.consumers[consumer] then return 0 end
    consumer_of(group, consumer)
    return 1
  end,
  DELCONSUMER = function(key, name, consumer)
    local group = known(key, name)
    if not group.consumers[consumer] then return 0 end
    local pending, gone = group.pending, 0
    for i = pending.last, pending.first, -1 do
      if pending[i].consumer == consumer then
        server.remove(pending, i)
        gone = gone + 1
      end
    end
    group.consumers[consumer] = nil
    without(group.consumer_names, consumer)
    return gone
  end,
}
add('XGROUP', { CREATE = -5, DESTROY = 4, CREATECONSUMER = 5, DELCONSUMER = 5 }, function(what, ...)
  local run = XGROUP[upper(what)] or fail('ERR the simulated server has no XGROUP ' .. what)
  return run(...)
end)

-- --- what is pending ------------------------------------------------------------------------------

local function summary(group)
  local pending, each, rows = group.pending, {}, {}
  if length(pending) == 0 then return { 0, false, false, false } end
  for i = pending.first, pending.last do each[pending[i].consumer] = (each[pending[i].consumer] or 0) + 1 end
  for _, name in ipairs(group.consumer_names) do
    if each[name] then rows[#rows + 1] = { name, server.plain(each[name]) } end
  end
  return { length(pending), pending[pending.first].id, pending[pending.last].id, rows }
end
add('XPENDING', -3, function(key, name, ...)
  local words, idle, i = { ... }, 0, 1
  if #words ~= 0 and (#words < 3 or #words > 6) then fail(server.SYNTAX) end
  local from_ms, from_seq, till_ms, till_seq, most
  if #words > 0 then
    if upper(words[1]) == 'IDLE' then
      idle, i = integer(words[2]), 3
      if #words < 5 then fail(server.SYNTAX) end
    end
    most = integer(words[i + 2])
    from_ms, from_seq = server.edge(words[i], true)
    till_ms, till_seq = server.edge(words[i + 1], false)
  end
  local group = group_of(key, name)
  if #words == 0 then return summary(group) end
  local pending, rows = group.pending, {}
  for k = place(pending, from_ms, from_seq), pending.last do
    local part = pending[k]
    if #rows >= most or behind(part.ms, part.seq, till_ms, till_seq) then break end
    local since = math.max(0, server.now_ms - part.at)
    if (not words[i + 3] or part.consumer == words[i + 3]) and since >= idle then
      rows[#rows + 1] = { part.id, part.consumer, since, part.count }
    end
  end
  return rows
end)

-- Gives what is pending to a consumer; `count` is how often it was handed out by then.
local function hand_over(part, consumer, at, count)
  part.consumer, part.at, part.count = consumer.name, at, count
  consumer.active = server.now_ms
end
-- The options behind the ids of XCLAIM.
local function claim_options(words, i)
  local options = {}
  while words[i] do
    local option = upper(words[i])
    if option == 'JUSTID' or option == 'FORCE' then options[option] = true
    elseif (option == 'IDLE' or option == 'TIME' or option == 'RETRYCOUNT') and words[i + 1] then
      options[option], i = integer(words[i + 1]), i + 1
    else fail("ERR Unrecognized XCLAIM option '" .. words[i] .. "'") end
    i = i + 1
  end
  return options
end
add('XCLAIM', -6, function(key, name, consumer_name, idle, ...)
  local group, stream = group_of(key, name)
  local least = math.max(0, integer(idle, 'ERR Invalid min-idle-time argument for XCLAIM'))
  local words, i, ids = { ... }, 1, {}
  while words[i] and string.find(words[i], '^%d+%-?%d*$') do ids[i], i = { id_of(words[i]) }, i + 1 end
  local options = claim_options(words, i)
  local at = options.TIME or options.IDLE and server.now_ms - options.IDLE or server.now_ms
  local consumer, rows = consumer_of(group, consumer_name), {}
  for _, id in ipairs(ids) do
    local part, k = at_id(group.pending, id[1], id[2])
    local entry, is_new = at_id(stream.entries, id[1], id[2]), false
    if not entry then
      if part then server.remove(group.pending, k) end
    else
      if not part and options.FORCE then
        part = { ms = entry.ms, seq = entry.seq, id = entry.id, consumer = consumer_name, at = at, count = 1 }
        server.insert(group.pending, part)
        is_new = true
      end
      if part and (is_new or server.now_ms - part.at >= least) then
        hand_over(part, consumer, at, options.RETRYCOUNT or part.count + (options.JUSTID and 0 or 1))
        rows[#rows + 1] = options.JUSTID and entry.id or server.shown(entry)
      end
    end
  end
  return rows
end)
add('XAUTOCLAIM', -6, function(key, name, consumer_name, idle, start, ...)
  local least = math.max(0, integer(idle, 'ERR Invalid min-idle-time argument for XAUTOCLAIM'))
  local ms, seq = server.edge(start, true)
  local words, count, bare, i = { ... }, 100, false, 1
  while words[i] do
    local option = upper(words[i])
    if option == 'COUNT' and words[i + 1] then
      i = i + 1
      count = integer(words[i], 'ERR COUNT must be > 0')
      if count < 1 then fail('ERR COUNT must be > 0') end
    elseif option == 'JUSTID' then bare = true
    else fail(server.SYNTAX) end
    i = i + 1
  end
  local group, stream = group_of(key, name)
  local consumer, pending, rows, gone = consumer_of(group, consumer_name), group.pending, {}, {}
  local k, looks = place(pending, ms, seq), count * 10
  while looks > 0 and count > 0 and k <= pending.last do
    local part = pending[k]
    looks = looks - 1
    local entry = at_id(stream.entries, part.ms, part.seq)
    if not entry then
      gone[#gone + 1], count = part.id, count - 1
      local before = pending.first
      server.remove(pending, k)
      if pending.first > before then k = k + 1 end
    else
      if server.now_ms - part.at >= least then
        hand_over(part, consumer, server.now_ms, part.count + (bare and 0 or 1))
        rows[#rows + 1] = bare and entry.id or server.shown(entry)
        count = count - 1
      end
      k = k + 1
    end
  end
  return { k <= pending.last and pending[k].id or '0-0', rows, gone }
end)

-- --- what is known of a stream --------------------------------------------------------------------

local XINFO = {
  GROUPS = function(stream)
    local rows = {}
    for i, name in ipairs(stream.group_names) do
      local group = stream.groups[name]
      rows[i] = { 'name', name, 'consumers', #group.consumer_names, 'pending', length(group.pending), 'last-delivered-id',
        server.name_of(group.ms, group.seq), 'entries-read', group.read or false, 'lag', lag_of(stream, group) }
    end
    return rows
  end,
  CONSUMERS = function(stream, key, name)
    local group = stream.groups[name] or fail("NOGROUP No such consumer group '" .. name .. "' for key name '" .. key .. "'")
    local rows = {}
    for i, consumer_name in ipairs(group.consumer_names) do
      local consumer = group.consumers[consumer_name]
      rows[i] = { 'name', consumer_name, 'pending', pending_of(group, consumer_name),
        'idle', math.max(0, server.now_ms - consumer.seen),
        'inactive', consumer.active and math.max(0, server.now_ms - consumer.active) or -1 }
    end
    return rows
  end,
  STREAM = function(stream, _, option)
    if option then fail("ERR unknown subcommand or wrong number of arguments for 'STREAM'. Try XINFO HELP.") end
    local entries = stream.entries
    local first, last = entries[entries.first], entries[entries.last]
    return { 'length', length(entries), 'radix-tree-keys', 1, 'radix-tree-nodes', 2,
      'last-generated-id', server.name_of(stream.ms, stream.seq),
      'max-deleted-entry-id', server.name_of(stream.gone_ms, stream.gone_seq), 'entries-added', stream.added,
      'recorded-first-entry-id', first and first.id or '0-0', 'groups', #stream.group_names,
      'first-entry', first and server.shown(first) or false, 'last-entry', last and server.shown(last) or false }
  end,
}
add('XINFO', { GROUPS = 3, CONSUMERS = 4, STREAM = -3 }, function(what, key, name)
  local run = XINFO[upper(what)] or fail('ERR the simulated server has no XINFO ' .. what)
  return run(find(key, 'stream') or fail('ERR no such key'), key, name)
end)
