-- Budgets. A budget is a hash: `limit:<what>`, `spent:<what>`, `reserved:<what>`, `by:<agent>:<what>`, and `window`, since
-- when it counts if it is an agent's; <what> is requests, tokens, or nano: billionths of a US dollar. What a run has reserved
-- is a hash of its own: id of the reservation → JSON of its amounts, of the input tokens among them, and of the keys of its
-- budgets. These keys stand in the record that a transition wrote, and carry the hash tag of the declared ones.
local COUNTED = { 'requests', 'tokens', 'nano' }

-- A reservation is over: its budgets have that much again. A budget that is gone is not made again.
local function unreserve(reservation)
  for _, budget in ipairs(reservation.budgets) do
    if redis.call('TYPE', budget).ok == 'hash' then
      for _, what in ipairs(COUNTED) do
        local amount = count(reservation[what])
        if amount > 0 then redis.call('HINCRBY', budget, 'reserved:' .. what, string.format('%.0f', -amount)) end
      end
    end
  end
end

-- A call has cost so much: a table of requests, input_tokens, output_tokens, nano_usd and estimated, as text of whole numbers.
local function count_cost(S, agent, id, reservation, cost)
  local whole = { requests = tonumber(cost.requests), nano = tonumber(cost.nano_usd),
    tokens = tonumber(cost.input_tokens) + tonumber(cost.output_tokens) }
  unreserve(reservation)
  for _, budget in ipairs(reservation.budgets) do
    if redis.call('TYPE', budget).ok == 'hash' then
      for _, what in ipairs(COUNTED) do
        if whole[what] > 0 then
          local more = string.format('%.0f', whole[what])
          redis.call('HINCRBY', budget, 'spent:' .. what, more)
          redis.call('HINCRBY', budget, 'by:' .. agent .. ':' .. what, more)
        end
      end
    end
  end
  local told = {}
  for _, what in ipairs({ 'requests', 'input_tokens', 'output_tokens', 'nano_usd', 'estimated' }) do
    if cost[what] ~= '0' then redis.call('HINCRBY', S, 'used_' .. what, cost[what]) end
    told[#told + 1] = what .. '=' .. cost[what]
  end
  changed('budget', session_of(S), id, 'spent', unpack(told))
end

-- The run is not at work any more. Nobody knows what the calls cost that it has neither settled nor released: they cost the most.
local function settle_open(S, run)
  local reserved = run .. ':reserved'
  local all = redis.call('TYPE', reserved).ok == 'hash' and redis.call('HGETALL', reserved) or {}
  for i = 1, #all, 2 do
    local fine, most = pcall(cjson.decode, all[i + 1])
    if fine and type(most) == 'table' and type(most.budgets) == 'table' then
      local function text(value) return string.format('%.0f', count(value)) end
      local cost = { requests = text(most.requests), input_tokens = text(most.input), nano_usd = text(most.nano),
        output_tokens = text(count(most.tokens) - count(most.input)), estimated = text(most.tokens) }
      count_cost(S, redis.call('HGET', S, 'agent') or '', all[i], most, cost)
    end
  end
  redis.call('UNLINK', reserved)
end
