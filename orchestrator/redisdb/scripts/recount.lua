-- recount: how many runs of each agent and tree are at work is counted again from the leases, and slots that have no run
-- any more are forgotten: those of processes that were killed.
-- KEYS  1 running  2 slots
-- ARGV  1 '1': count again; '': forget slots only
-- Returns  {slots that were forgotten, counts that were wrong}
-- Complexity: O(running runs + slots).
-- include: base
local function of_run(id, ...)
  local fine, r = pcall(fields, beside(KEYS[1], 'run:' .. id), ...)
  return fine and r or nil
end

local forgotten = 0
for slot, last in pairs(object(KEYS[2])) do
  local claim, id = string.match(last, '^(%S+) (%S+) %d+$')
  local r = id and of_run(id, 'state', 'claim') or { state = '' }
  if r.state ~= 'running' or r.claim ~= claim then
    redis.call('HDEL', KEYS[2], slot)
    forgotten = forgotten + 1
  end
end
if ARGV[1] ~= '1' then return { forgotten, 0 } end

local right, wrong = {}, 0
for _, id in ipairs(redis.call('ZRANGE', KEYS[1], 0, -1)) do
  local r = of_run(id, 'state', 'session', 'standing')
  if r and r.state == 'running' and r.standing ~= '1' then
    local fine, s = pcall(fields, beside(KEYS[1], 'session:' .. r.session), 'agent', 'root')
    if fine then
      for _, whose in ipairs({ 'agent:' .. s.agent, 'tree:' .. s.root }) do right[whose] = (right[whose] or 0) + 1 end
    end
  end
end
local at_work = beside(KEYS[1], 'at-work')
for whose, said in pairs(object(at_work)) do
  if count(said) == right[whose] then
    right[whose] = nil
  elseif not right[whose] then
    redis.call('HDEL', at_work, whose)
    wrong = wrong + 1
  end
end
for whose, number in pairs(right) do
  redis.call('HSET', at_work, whose, number)
  wrong = wrong + 1
end
return { forgotten, wrong }
