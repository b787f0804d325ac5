-- A new session gets a budget: `limits` names what is limited and its limit, in turn. False: it gets none.
local function set_budget(budget, limits)
  if limits == '' then return false end
  for what, limit in string.gmatch(limits, '(%a+) (%d+)') do redis.call('HSET', budget, 'limit:' .. what, limit) end
  return true
end
