-- Sets; the members in the order of insertion.
local server = ...
local add, find = server.add, server.find

add('SADD', -3, function(key, ...)
  local set = server.find_or_make(key, 'set')
  local before = set.n
  for i = 1, select('#', ...) do server.put(set, (select(i, ...)), true) end
  return set.n - before
end)
add('SREM', -3, function(key, ...)
  local set, gone = find(key, 'set'), 0
  for i = 1, set and select('#', ...) or 0 do
    if server.take_from(key, set, (select(i, ...))) then gone = gone + 1 end
  end
  return gone
end)
add('SISMEMBER', 3, function(key, member)
  local set = find(key, 'set')
  return set and set.at[member] and 1 or 0
end)
add('SMISMEMBER', -3, function(key, ...)
  local set, answers = find(key, 'set'), { ... }
  for i = 1, #answers do answers[i] = set and set.at[answers[i]] and 1 or 0 end
  return answers
end)
add('SCARD', 2, function(key)
  local set = find(key, 'set')
  return set and set.n or 0
end)
add('SMEMBERS', 2, function(key)
  local set = find(key, 'set')
  return set and server.names(set) or {}
end)
add('SSCAN', -3, function(key, cursor, ...)
  server.check_cursor(cursor)
  local set, members = find(key, 'set'), {}
  if not set then return { '0', members } end
  local pattern = server.scan_options({ ... })
  for _, member in ipairs(server.names(set)) do
    if string.find(member, pattern) then members[#members + 1] = member end
  end
  return { '0', members }
end)
