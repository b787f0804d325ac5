-- Budgets. A budget is a hash: `limit:<what>`, `spent:<what>`, `reserved:<what>`, `by:<agent>:<what>`, and `window`, since
-- when it counts if it is an agent's; <what> is requests, tokens, or nano: billionths of a US dollar.
-- What a run has reserved is a hash of its own: id of the reservation → JSON of its amounts and of the keys of its budgets.
-- These keys stand in the record that a transition wrote, and carry the hash tag of the declared ones.
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

-- The run is not at work any more: what it had reserved and not spent comes back.
local function give_back(run)
  local reserved = run .. ':reserved'
  local kind = redis.call('TYPE', reserved).ok
  if kind == 'none' then return end
  if kind == 'hash' then
    local all = redis.call('HGETALL', reserved)
    for i = 1, #all, 2 do
      local fine, reservation = pcall(cjson.decode, all[i + 1])
      if fine and type(reservation) == 'table' and reservation.budgets then
        unreserve(reservation)
        changed('budget', redis.call('HGET', run, 'session') or '-', all[i], 'returned')
      end
    end
  end
  redis.call('UNLINK', reserved)
end
