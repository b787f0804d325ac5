-- acquire_call: a run wants to call a model: it may, or is told how long it has to wait. Who waits has a place in a queue in
-- which trees take turns: one tree with many waiting runs holds up no other. The same call, sent twice, is one.
-- The counts of a minute are kept by seconds: `r:<second>` requests, `t:<second>` tokens. Beside them: `w:<waiter>` tree and
-- until when its place is kept, `tree:<tree>` the last turn of a tree, `at` the turn that was served last, `ms` how long a
-- call takes, smoothed.
-- KEYS  1 provider_held
-- ARGV  1 request: model; call: its id; waiter: the same for all tries of the same call; tree; tokens; requests_a_minute,
--         tokens_a_minute, calls at once: the limits there are; time_ms that the call may take; kept_ms that a place is kept after
--         its time
-- Returns  {'granted', second} | {'wait', ms, why in words, if it is not the provider's limits}
-- Complexity: O(seconds of a minute + calls at work + runs that wait).
-- include: base
-- include: request
local COUNTS, CALLS = in_shard('counts:' .. q.model), in_shard('calls:' .. q.model)
local WAITING = in_shard('waiting:' .. q.model)
local now, id, waiter, tree, tokens = clock(q.now), q.call, q.waiter, q.tree or '', q.tokens or 0
local rpm, tpm, most = q.requests_a_minute, q.tokens_a_minute, q.calls
local second = math.floor(now / 1000)
local IDLE_MS, MINUTE, GUESS_MS, LEAST_WAIT_MS, LATE_MS = 600000, 60, 2000, 50, 1000

-- A call whose worker is gone ends with its time.
redis.call('ZREMRANGEBYSCORE', CALLS, '-inf', now)
if redis.call('ZSCORE', CALLS, id) then return { 'granted', tostring(second) } end

-- What was asked for in the last minute, by seconds, the oldest first.
local names = {}
for s = second - MINUTE, second do
  names[#names + 1], names[#names + 2] = 'r:' .. s, 't:' .. s
end
local found = redis.call('HMGET', COUNTS, unpack(names))
local requests, used = 0, 0
for i = 1, #found, 2 do
  requests = requests + count(found[i])
  used = used + count(found[i + 1])
end

-- Places whose run did not come back are given up. Who is late, as no slot is free for it, keeps its place and holds up nobody.
local ahead, found_own = 0, false
for _, other in ipairs(redis.call('ZRANGE', WAITING, 0, -1)) do
  local kept = tonumber(string.match(redis.call('HGET', COUNTS, 'w:' .. other) or '', ' (%d+)$')) or 0
  if other == waiter then
    found_own = true
  elseif kept < now then
    redis.call('ZREM', WAITING, other)
    redis.call('HDEL', COUNTS, 'w:' .. other)
  elseif not found_own and kept - q.kept_ms + LATE_MS > now then
    ahead = ahead + 1
  end
end
if redis.call('ZCARD', WAITING) == 0 then
  for _, field in ipairs(redis.call('HKEYS', COUNTS)) do
    if string.find(field, '^tree:') or string.find(field, '^w:') then redis.call('HDEL', COUNTS, field) end
  end
end
if not found_own then
  local c = redis.call('HMGET', COUNTS, 'at', 'tree:' .. tree)
  local turn = math.max(count(c[1]), count(c[2])) + 1
  redis.call('HSET', COUNTS, 'tree:' .. tree, turn)
  redis.call('ZADD', WAITING, turn, waiter)
end

-- How long until there is room for so many more requests and tokens: until enough of the last minute has passed.
local function until_room(limit, total, need, offset)
  if not limit or total == 0 or total + need <= limit then return 0 end
  local left = total
  for i = 1, #found, 2 do
    left = left - count(found[i + offset])
    if left + need <= limit or left == 0 then return (second - MINUTE + (i - 1) / 2 + MINUTE + 1) * 1000 - now end
  end
  return MINUTE * 1000
end
local till, why = string.match(redis.call('GET', KEYS[1]) or '', '^(%d+) ?(.*)$')
local wait = math.max(0, count(till) - now)
if wait == 0 then why = '' end
wait = math.max(wait, until_room(rpm, requests, math.min(ahead + 1, rpm or 0), 0))
if rpm then wait = math.max(wait, math.floor(ahead / rpm) * MINUTE * 1000) end
wait = math.max(wait, until_room(tpm, used, tokens, 1))
if most then
  local at_work = redis.call('ZCARD', CALLS)
  if at_work + ahead >= most then
    local each = count(redis.call('HGET', COUNTS, 'ms'))
    if each <= 0 then each = GUESS_MS end
    wait = math.max(wait, math.ceil((at_work + ahead + 1 - most) / most) * each)
  end
end
-- Tokens are not known of those ahead: they go first.
if tpm and ahead > 0 and used > 0 and used + tokens * (ahead + 1) > tpm then wait = math.max(wait, 1000) end
redis.call('PEXPIRE', COUNTS, IDLE_MS)
if wait > 0 then
  wait = math.ceil(math.max(wait, LEAST_WAIT_MS))
  redis.call('HSET', COUNTS, 'w:' .. waiter, tree .. ' ' .. string.format('%.0f', now + wait + q.kept_ms))
  redis.call('PEXPIRE', COUNTS, math.max(IDLE_MS, 2 * wait))
  redis.call('PEXPIRE', WAITING, math.max(IDLE_MS, 2 * wait))
  return { 'wait', tostring(wait), why }
end
redis.call('HSET', COUNTS, 'at', redis.call('ZSCORE', WAITING, waiter))
redis.call('ZREM', WAITING, waiter)
redis.call('HDEL', COUNTS, 'w:' .. waiter)
for _, field in ipairs(redis.call('HKEYS', COUNTS)) do
  local at = string.match(field, '^[rt]:(%d+)$')
  if at and tonumber(at) < second - MINUTE then redis.call('HDEL', COUNTS, field) end
end
redis.call('HINCRBY', COUNTS, 'r:' .. second, 1)
redis.call('HINCRBY', COUNTS, 't:' .. second, tokens)
redis.call('ZADD', CALLS, now + (q.time_ms or 0), id)
redis.call('PEXPIRE', CALLS, math.max(IDLE_MS, q.time_ms or 0))
return { 'granted', tostring(second) }
