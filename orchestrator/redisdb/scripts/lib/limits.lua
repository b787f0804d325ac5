-- How many runs may be executed at once, and what is paused. Three keys of the shard, and one for each tree:
--   limits          hash, see `keys.run_limits`: who is paused, and how many runs of an agent or a tree may be at work
--   at-work         hash: `agent:<name>`, `tree:<root>` → runs that are held and do not stand still in a call
--   blocked         set of the trees that have blocked runs
--   blocked:<root>  sorted set: ready runs of a tree that has as many at work as it may, in the order of the ready ones
-- They carry the hash tag of the declared keys, and are found from any of these: which tree or agent a run is of is
-- known here only.

-- The agent whose ready runs a key holds.
local function agent_of(ready) return string.match(ready, ':ready:(.*)') end

-- A run of the agent in the tree is at work from now on, or goes on after a call.
local function count_in(key, agent, root)
  redis.call('HINCRBY', beside(key, 'at-work'), 'agent:' .. agent, 1)
  redis.call('HINCRBY', beside(key, 'at-work'), 'tree:' .. root, 1)
end

-- One less is at work of each of these. Where none is left, none is remembered.
local function count_one_less(key, ...)
  local at_work, gone, left = beside(key, 'at-work'), {}, {}
  local numbers = redis.call('HMGET', at_work, ...)
  for i, whose in ipairs({...}) do
    local number = counter(at_work, whose, numbers[i]) - 1
    if number <= 0 then gone[#gone + 1] = whose else left[#left + 1], left[#left + 2] = whose, number end
  end
  call_with('HDEL', at_work, gone)
  call_with('HSET', at_work, left)
end

-- What keeps an agent's ready runs from being taken: 'paused' | 'limit', or nil. `ready` is the key of these runs.
local function held_back(ready)
  local agent, limits = agent_of(ready), beside(ready, 'limits')
  local l = redis.call('HMGET', limits, 'paused:agent:' .. agent, 'queue:' .. agent, 'agent:' .. agent, 'default:' .. agent)
  if l[1] then return 'paused' end
  if l[2] and redis.call('HEXISTS', limits, 'paused:queue:' .. l[2]) == 1 then return 'paused' end
  local most = tonumber(l[3] or l[4] or '')
  if most and count(redis.call('HGET', beside(ready, 'at-work'), 'agent:' .. agent)) >= most then return 'limit' end
end

-- How many more runs of a tree may be at work; nil: any number.
local function room_in_tree(key, root)
  local l = redis.call('HMGET', beside(key, 'limits'), 'tree:' .. root, 'trees')
  local most = tonumber(l[1] or l[2] or '')
  if most then return most - count(redis.call('HGET', beside(key, 'at-work'), 'tree:' .. root)) end
end
