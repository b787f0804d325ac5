-- Sorted sets: `at` has the scores, `sorted` the members in their order.
local server = ...
local add, fail, find, float, integer, number = server.add, server.fail, server.find, server.float, server.integer, server.number
local insert, remove, upper, sub = table.insert, table.remove, string.upper, string.sub

-- Where a member of this score stands, or would stand.
local function rank(set, score, member)
  local sorted, at = set.sorted, set.at
  local low, high = 1, #sorted + 1
  while low < high do
    local middle = math.floor((low + high) / 2)
    local other = sorted[middle]
    local its = at[other]
    if its < score or its == score and other < member then low = middle + 1 else high = middle end
  end
  return low
end

local function put(set, member, score)
  local before = set.at[member]
  if before then
    remove(set.sorted, rank(set, before, member))
  else
    set.n = set.n + 1
  end
  -- Taken out, or not there yet, while its place is looked for.
  set.at[member] = nil
  insert(set.sorted, rank(set, score, member), member)
  set.at[member] = score
end

local function take(key, set, member)
  local score = set.at[member]
  if not score then return false end
  remove(set.sorted, rank(set, score, member))
  set.at[member] = nil
  set.n = set.n - 1
  if set.n == 0 then server.drop(key) end
  return true
end

local OPTIONS = { NX = true, XX = true, GT = true, LT = true, CH = true, INCR = true }
add('ZADD', -4, function(key, ...)
  local words, i, only = { ... }, 1, {}
  while words[i] and OPTIONS[upper(words[i])] do only[upper(words[i])], i = true, i + 1 end
  local rest = #words - i + 1
  if rest == 0 or rest % 2 == 1 then fail(server.SYNTAX) end
  if only.NX and only.XX then fail('ERR XX and NX options at the same time are not compatible') end
  if only.GT and only.LT or only.NX and (only.GT or only.LT) then fail('ERR GT, LT, and/or NX options at the same time are not compatible') end
  if only.INCR and rest > 2 then fail('ERR INCR option supports a single increment-element pair') end
  local scores = {}
  for k = i, #words, 2 do scores[k] = float(words[k]) end
  local set = find(key, 'zset')
  if not set then
    if only.XX then return not only.INCR and 0 end
    set = server.store(key, { kind = 'zset', n = 0, at = {}, sorted = {} })
  end
  local fresh, changed, score = 0, 0, nil
  for k = i, #words, 2 do
    local member = words[k + 1]
    local before = set.at[member]
    score = scores[k] + (only.INCR and before or 0)
    if before == nil then
      if only.XX then score = nil else
        put(set, member, score)
        fresh = fresh + 1
      end
    elseif only.NX or only.GT and score <= before or only.LT and score >= before then score = nil
    elseif before ~= score then
      put(set, member, score)
      changed = changed + 1
    end
  end
  if only.INCR then return score and number(score) or false end
  return only.CH and fresh + changed or fresh
end)
add('ZINCRBY', 4, function(key, more, member)
  local amount = float(more)
  local set = find(key, 'zset') or server.store(key, { kind = 'zset', n = 0, at = {}, sorted = {} })
  local score = (set.at[member] or 0) + amount
  put(set, member, score)
  return number(score)
end)
add('ZREM', -3, function(key, ...)
  local set, gone = find(key, 'zset'), 0
  for i = 1, set and select('#', ...) or 0 do
    if take(key, set, (select(i, ...))) then gone = gone + 1 end
  end
  return gone
end)
add('ZCARD', 2, function(key)
  local set = find(key, 'zset')
  return set and set.n or 0
end)
add('ZSCORE', 3, function(key, member)
  local set = find(key, 'zset')
  return set and set.at[member] and number(set.at[member]) or false
end)
add('ZMSCORE', -3, function(key, ...)
  local set, scores = find(key, 'zset'), { ... }
  for i = 1, #scores do
    local score = set and set.at[scores[i]]
    scores[i] = score and number(score) or false
  end
  return scores
end)
add('ZRANK', -3, function(key, member, option)
  if option then fail(server.SYNTAX) end
  local set = find(key, 'zset')
  local score = set and set.at[member]
  return score and rank(set, score, member) - 1 or false
end)
add('ZREVRANK', -3, function(key, member, option)
  if option then fail(server.SYNTAX) end
  local set = find(key, 'zset')
  local score = set and set.at[member]
  return score and set.n - rank(set, score, member) or false
end)

-- --- ranges: each answers the first and the last place of those that are meant --------------------

-- The first place whose member is not `before(member, score)`: what comes first in the order is asked first.
local function first_not(set, before)
  local low, high = 1, #set.sorted + 1
  while low < high do
    local middle = math.floor((low + high) / 2)
    local member = set.sorted[middle]
    if before(member, set.at[member]) then low = middle + 1 else high = middle end
  end
  return low
end

local function score_edge(text)
  local open = sub(text, 1, 1) == '('
  if text == '' or text == '(' then return 0, open end
  return float(open and sub(text, 2) or text, 'ERR min or max is not a float'), open
end
local function by_score(min, max)
  local low, low_open = score_edge(min)
  local high, high_open = score_edge(max)
  return function(set)
    return first_not(set, function(_, score) return score < low or low_open and score == low end),
      first_not(set, function(_, score) return score < high or not high_open and score == high end) - 1
  end
end

local function name_edge(text)
  local first = sub(text, 1, 1)
  if text == '-' or text == '+' then return text end
  if first ~= '[' and first ~= '(' then fail('ERR min or max not valid string range item') end
  return first, sub(text, 2)
end
local function by_name(min, max)
  local low, low_name = name_edge(min)
  local high, high_name = name_edge(max)
  return function(set)
    return first_not(set, function(member)
      return low == '+' or low_name and (member < low_name or low == '(' and member == low_name)
    end), first_not(set, function(member)
      return high == '+' or high_name and (member < high_name or high == '[' and member == high_name)
    end) - 1
  end
end

local function by_rank(first, last)
  first, last = integer(first), integer(last)
  return function(set, backwards)
    local from, to = server.bounds(set.n, first, last)
    if backwards then return set.n - to + 1, set.n - from + 1 end
    return from, to
  end
end

local function range(key, first, last, how, backwards, options)
  local scores, skip, most, i = false, 0, -1, 1
  local limited
  while options[i] do
    local option = upper(options[i])
    if option == 'WITHSCORES' and how ~= by_name then scores = true
    elseif option == 'LIMIT' and options[i + 2] then
      skip, most, limited = integer(options[i + 1]), integer(options[i + 2]), true
      i = i + 2
    elseif option == 'REV' and options.any then backwards = true
    elseif option == 'BYSCORE' and options.any then how = by_score
    elseif option == 'BYLEX' and options.any then how = by_name
    else fail(server.SYNTAX) end
    i = i + 1
  end
  if limited and how == by_rank then
    fail('ERR syntax error, LIMIT is only supported in combination with either BYSCORE or BYLEX')
  end
  if scores and how == by_name then fail('ERR syntax error, WITHSCORES not supported in combination with BYLEX') end
  if backwards and how ~= by_rank then first, last = last, first end
  local places = how(first, last)
  local set = find(key, 'zset')
  local members = {}
  if not set then return members end
  local from, to = places(set, backwards)
  if skip < 0 then return members end
  if backwards then to = to - skip else from = from + skip end
  if most >= 0 then
    if backwards then from = math.max(from, to - most + 1) else to = math.min(to, from + most - 1) end
  end
  local step = 1
  if backwards then from, to, step = to, from, -1 end
  for k = from, to, step do
    local member = set.sorted[k]
    members[#members + 1] = member
    if scores then members[#members + 1] = number(set.at[member]) end
  end
  return members
end
add('ZRANGE', -4, function(key, first, last, ...) return range(key, first, last, by_rank, false, { any = true, ... }) end)
add('ZREVRANGE', -4, function(key, first, last, ...) return range(key, first, last, by_rank, true, { ... }) end)
add('ZRANGEBYSCORE', -4, function(key, min, max, ...) return range(key, min, max, by_score, false, { ... }) end)
add('ZREVRANGEBYSCORE', -4, function(key, max, min, ...) return range(key, max, min, by_score, true, { ... }) end)
add('ZRANGEBYLEX', -4, function(key, min, max, ...) return range(key, min, max, by_name, false, { ... }) end)

local function counted(how)
  return function(key, min, max)
    local places = how(min, max)
    local set = find(key, 'zset')
    if not set then return 0 end
    local from, to = places(set)
    return math.max(0, to - from + 1)
  end
end
add('ZCOUNT', 4, counted(by_score))
add('ZLEXCOUNT', 4, counted(by_name))

local function removed(how)
  return function(key, min, max)
    local places = how(min, max)
    local set = find(key, 'zset')
    if not set then return 0 end
    local from, to = places(set)
    local members = {}
    for k = from, to do members[#members + 1] = set.sorted[k] end
    for _, member in ipairs(members) do take(key, set, member) end
    return #members
  end
end
add('ZREMRANGEBYSCORE', 4, removed(by_score))
add('ZREMRANGEBYRANK', 4, removed(by_rank))
add('ZREMRANGEBYLEX', 4, removed(by_name))

add('ZSCAN', -3, function(key, cursor, ...)
  server.check_cursor(cursor)
  local set, members = find(key, 'zset'), {}
  if not set then return { '0', members } end
  local pattern = server.scan_options({ ... })
  for _, member in ipairs(set.sorted) do
    if string.find(member, pattern) then
      members[#members + 1] = member
      members[#members + 1] = number(set.at[member])
    end
  end
  return { '0', members }
end)
