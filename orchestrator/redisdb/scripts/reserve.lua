-- reserve: the holder of a run sets aside the most that its next call can cost, in every budget that the call counts
-- against, or in none of them. The same reservation, sent twice, is one.
-- KEYS  1 session
-- ARGV  1 request: run, claim; reservation: its id; need: requests, tokens, nano: billionths of a USD, and input: the input tokens among
--         the tokens; agent, most: of the same, which all sessions of the agent may spend within window_ms; budgets: the
--         sessions whose budgets count, the root first; all amounts as text of whole numbers
-- Returns  {'reserved'} | {'lost'}
--          | {'refused', number of the budget, 0: the agent's, what of it, how much of that is left}: nothing was reserved. What the
--          agent may spend is noted in any case
-- Complexity: O(budgets).
-- include: base
-- include: request
-- include: budget
local RUN, SPENDING = in_shard('run:' .. q.run), in_shard('spending:' .. q.agent)
local RESERVED, of_agent, counted = RUN .. ':reserved', q.most or {}, {}
for i, session in ipairs(q.budgets or {}) do counted[i] = session_key(session) .. ':budget' end
local now, id = clock(q.now), q.reservation
local r = held_run(RUN, q.claim, 'session')
if not r then return { 'lost' } end
if redis.call('HEXISTS', RESERVED, id) == 1 then return { 'reserved' } end
local need = {}
for _, what in ipairs(COUNTED) do need[what] = tonumber(q.need[what]) end
local limited = next(of_agent) ~= nil
if limited then table.insert(counted, 1, SPENDING) end

-- A budget of an agent begins again when its time has passed. A beginning in the future is of a clock that has gone back.
local began = limited and count(redis.call('HGET', SPENDING, 'window')) or 0
-- What its worker says it may spend stands beside it, for people, also where the call is refused.
for _, what in ipairs(COUNTED) do
  local limit = of_agent[what]
  if limit then redis.call('HSET', SPENDING, 'limit:' .. what, limit)
  elseif limited then redis.call('HDEL', SPENDING, 'limit:' .. what) end
end
local anew = limited and (now >= began + q.window_ms or now < began)
for place, budget in ipairs(counted) do
  local own = limited and place == 1
  for _, what in ipairs(COUNTED) do
    local b = fields(budget, 'limit:' .. what, 'spent:' .. what, 'reserved:' .. what)
    local limit = own and of_agent[what] or b['limit:' .. what]
    local spent = own and anew and 0 or count(b['spent:' .. what])
    local left = limit ~= '' and tonumber(limit) - spent - count(b['reserved:' .. what])
    if left and need[what] > 0 and need[what] > left then
      changed('budget', r.session, id, 'refused', 'what=' .. what)
      return { 'refused', tostring(limited and place - 1 or place), what, string.format('%.0f', math.max(0, left)) }
    end
  end
end

if anew then
  for _, field in ipairs(redis.call('HKEYS', SPENDING)) do
    if not string.find(field, '^reserved:') and not string.find(field, '^limit:') then redis.call('HDEL', SPENDING, field) end
  end
  redis.call('HSET', SPENDING, 'window', now)
end
for _, budget in ipairs(counted) do
  for _, what in ipairs(COUNTED) do
    if need[what] > 0 then redis.call('HINCRBY', budget, 'reserved:' .. what, string.format('%.0f', need[what])) end
  end
end
need.budgets, need.input = counted, tonumber(q.need.input)
redis.call('HSET', RESERVED, id, cjson.encode(need))
changed('budget', r.session, id, 'reserved', 'requests=' .. q.need.requests, 'tokens=' .. q.need.tokens,
  'nano_usd=' .. q.need.nano)
return { 'reserved' }
