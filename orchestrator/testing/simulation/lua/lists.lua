-- Lists.
local server = ...
local add, fail, find, integer = server.add, server.fail, server.find, server.integer

local function list_of(key) return find(key, 'list') or server.store(key, { kind = 'list', texts = {} }) end

add('RPUSH', -3, function(key, ...)
  local texts = list_of(key).texts
  for i = 1, select('#', ...) do texts[#texts + 1] = (select(i, ...)) end
  return #texts
end)
add('LPUSH', -3, function(key, ...)
  local texts = list_of(key).texts
  for i = 1, select('#', ...) do table.insert(texts, 1, (select(i, ...))) end
  return #texts
end)
add('LLEN', 2, function(key)
  local list = find(key, 'list')
  return list and #list.texts or 0
end)
add('LRANGE', 4, function(key, first, last)
  first, last = integer(first), integer(last)
  local list, texts = find(key, 'list'), {}
  if list then
    first, last = server.bounds(#list.texts, first, last)
    for i = first, last do texts[#texts + 1] = list.texts[i] end
  end
  return texts
end)
add('LINDEX', 3, function(key, index)
  local list = find(key, 'list')
  if not list then return false end
  local i = integer(index)
  return list.texts[i < 0 and #list.texts + i + 1 or i + 1] or false
end)
add('LPOS', -3, function(key, text, option)
  if option == 'RANK' or option == 'COUNT' or option == 'MAXLEN' then fail('ERR the simulated server has no LPOS ' .. option) end
  if option then fail(server.SYNTAX) end
  local list = find(key, 'list')
  for i, other in ipairs(list and list.texts or {}) do
    if other == text then return i - 1 end
  end
  return false
end)

-- Takes from one end, one text or as many as are asked for.
local function pop(key, count, from_left)
  local most = count and integer(count, 'ERR value is out of range, must be positive')
  if most and most < 0 then fail('ERR value is out of range, must be positive') end
  local list = find(key, 'list')
  if not list then return false end
  local taken = {}
  for i = 1, math.min(most or 1, #list.texts) do taken[i] = table.remove(list.texts, from_left and 1 or nil) end
  if #list.texts == 0 then server.drop(key) end
  if count then return taken end
  return taken[1]
end
add('LPOP', -2, function(key, count, more)
  if more then server.wrong_number('LPOP') end
  return pop(key, count, true)
end)
add('RPOP', -2, function(key, count, more)
  if more then server.wrong_number('RPOP') end
  return pop(key, count, false)
end)
-- Nobody waits here: whoever sends these decides what happens until there is something.
local function pop_any(from_left, ...)
  local keys = select('#', ...) - 1
  local timeout = server.float((select(keys + 1, ...)), 'ERR timeout is not a float or out of range')
  if timeout < 0 then fail('ERR timeout is negative') end
  if timeout > 2 ^ 53 then fail('ERR timeout is out of range') end
  for i = 1, keys do
    local key = select(i, ...)
    local text = pop(key, nil, from_left)
    if text then return { key, text } end
  end
  return false
end
add('BLPOP', -3, function(...) return pop_any(true, ...) end)
add('BRPOP', -3, function(...) return pop_any(false, ...) end)
add('LREM', 4, function(key, count, text)
  local most = integer(count)
  local list, gone = find(key, 'list'), 0
  if not list then return 0 end
  local texts, i, step = list.texts, most < 0 and #list.texts or 1, most < 0 and -1 or 1
  while texts[i] and (most == 0 or gone < math.abs(most)) do
    if texts[i] == text then
      table.remove(texts, i)
      gone = gone + 1
      if step < 0 then i = i - 1 end
    else
      i = i + step
    end
  end
  if #texts == 0 then server.drop(key) end
  return gone
end)
add('LTRIM', 4, function(key, first, last)
  first, last = integer(first), integer(last)
  local list, texts = find(key, 'list'), {}
  if not list then return server.OK end
  first, last = server.bounds(#list.texts, first, last)
  for i = first, last do texts[#texts + 1] = list.texts[i] end
  list.texts = texts
  if #texts == 0 then server.drop(key) end
  return server.OK
end)
