-- reserve: the holder of a run sets aside the most that its next call can cost, in every budget that the call counts
-- against, or in none of them. The same reservation, sent twice, is one.
-- KEYS  1 run  2 reserved  3 spending  4… budgets of the session and of those above it, the root's first
-- ARGV  1 now or ''  2 claim  3 id of the reservation  4 requests  5 tokens  6 billionths of a USD
--       7 most requests of the agent or ''  8 tokens likewise  9 billionths likewise  10 ms that the agent's budget is for
--       11 input tokens among the tokens
-- Returns  {'reserved'} | {'lost'}
--          | {'refused', number of the key of the budget, what of it, how much of that is left}: nothing was reserved. What the
--          agent may spend is noted in any case
-- Complexity: O(budgets).
-- include: base
-- include: budget
local now, id = clock(ARGV[1]), ARGV[3]
local r = held_run(KEYS[1], ARGV[2], 'session')
if not r then return { 'lost' } end
if redis.call('HEXISTS', KEYS[2], id) == 1 then return { 'reserved' } end
local need = { requests = tonumber(ARGV[4]), tokens = tonumber(ARGV[5]), nano = tonumber(ARGV[6]) }
local of_agent = { requests = ARGV[7], tokens = ARGV[8], nano = ARGV[9] }
local limited = ARGV[7] .. ARGV[8] .. ARGV[9] ~= ''

-- A budget of an agent begins again when its time has passed. A beginning in the future is of a clock that has gone back.
local began = limited and count(redis.call('HGET', KEYS[3], 'window')) or 0
-- What its worker says it may spend stands beside it, for people, also where the call is refused.
for place, what in ipairs(COUNTED) do
  local limit = ARGV[6 + place]
  if limit ~= '' then redis.call('HSET', KEYS[3], 'limit:' .. what, limit)
  elseif limited then redis.call('HDEL', KEYS[3], 'limit:' .. what) end
end
local anew = limited and (now >= began + tonumber(ARGV[10]) or now < began)
for k = limited and 3 or 4, #KEYS do
  for _, what in ipairs(COUNTED) do
    local b = fields(KEYS[k], 'limit:' .. what, 'spent:' .. what, 'reserved:' .. what)
    local limit = k == 3 and of_agent[what] or b['limit:' .. what]
    local spent = k == 3 and anew and 0 or count(b['spent:' .. what])
    local left = limit ~= '' and tonumber(limit) - spent - count(b['reserved:' .. what])
    if left and need[what] > 0 and need[what] > left then
      return { 'refused', tostring(k), what, string.format('%.0f', math.max(0, left)) }
    end
  end
end

if anew then
  for _, field in ipairs(redis.call('HKEYS', KEYS[3])) do
    if not string.find(field, '^reserved:') and not string.find(field, '^limit:') then redis.call('HDEL', KEYS[3], field) end
  end
  redis.call('HSET', KEYS[3], 'window', now)
end
local budgets = {}
for k = limited and 3 or 4, #KEYS do
  budgets[#budgets + 1] = KEYS[k]
  for _, what in ipairs(COUNTED) do
    if need[what] > 0 then redis.call('HINCRBY', KEYS[k], 'reserved:' .. what, string.format('%.0f', need[what])) end
  end
end
need.budgets, need.input = budgets, tonumber(ARGV[11])
redis.call('HSET', KEYS[2], id, cjson.encode(need))
changed('budget', r.session, id, 'reserved', 'requests=' .. ARGV[4], 'tokens=' .. ARGV[5], 'nano_usd=' .. ARGV[6])
return { 'reserved' }
