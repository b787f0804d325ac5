-- claim_next: a slot takes the next ready run of the agents that it serves, under a random claim id.
-- The most urgent run goes first; of several agents' equally urgent ones, that of the agent named first, so that a
-- caller who names them in a new order each time is fair to all. The same claim id, sent twice, is one claim.
-- Runs of an agent that is paused, or that has as many at work as it may, stay ready. A run of a tree that has as many
-- at work as it may is blocked until one of these ends.
-- KEYS  1 running
-- ARGV  1 request: claim: its id; worker; slot; woken: the slot was; rank to take from if it has any, as text: what has a low priority
--         must not wait for ever; agents; versions: for each the version and on_deploy of the slot's definition, with a
--         space between, or ''
-- Returns  {'held', … as of claim, number of the agent, {numbers of the agents whose workers are to be told of
--          more}, {damaged}}
--          | {'none', {damaged}};  damaged: run, what is wrong, …: these are ready no more until the sweep puts them back
-- Complexity: O(agents + items that the run carries).
-- include: base
-- include: request
-- include: claim
local QUEUED, SLOTS, READY, TURNS = in_shard('queued'), in_shard('slots'), {}, {}
for n, agent in ipairs(q.agents or {}) do READY[n], TURNS[n] = in_shard('ready:' .. agent), in_shard('turns:' .. agent) end
local now, claim, woken = clock(q.now), q.claim, q.woken

local function run_key(id) return in_shard('run:' .. id) end
local function load_of(id, session, run)
  local key = session_key(run.session)
  return load_run(session, run, key .. ':items', key .. ':bodies')
end

local damaged = {}
local function answer(load, agent, more)
  local said = held(load)
  said[10], said[11], said[12] = tostring(agent), more, damaged
  return said
end

-- What this slot took last; said again to a claim that was sent twice.
local last = redis.call('HGET', SLOTS, q.slot)
if last then
  local before, id, agent = string.match(last, '^(%S+) (%S+) (%d+)$')
  if before == claim then
    local r = object(run_key(id))
    if r.state == 'running' and r.claim == claim then
      return answer(load_of(id, object(session_key(r.session)), r), agent, {})
    end
  end
end

if woken then
  for _, turns in ipairs(TURNS) do redis.call('HDEL', turns, 'woken', 'wakeups') end
end

-- Whether an agent's ready runs may be taken; asked once.
local may_take = {}
local function is_open(k)
  if may_take[k] == nil then may_take[k] = held_back(READY[k]) == nil end
  return may_take[k]
end

-- The place of the next run of an agent, of a certain rank or of any: {run, score} or nil.
local function head(ready, rank)
  local found
  if rank then
    found = redis.call('ZRANGEBYSCORE', ready, string.format('%.0f', rank * 1e12),
      string.format('(%.0f', (rank + 1) * 1e12), 'WITHSCORES', 'LIMIT', 0, 1)
  else
    found = redis.call('ZRANGE', ready, 0, 0, 'WITHSCORES')
  end
  if #found == 0 then return nil end
  return { found[1], tonumber(found[2]) }
end

-- The agent whose turn it is, with the place of its next run. `idle` has those of which nothing is ready.
local idle = {}
local function choose()
  local chosen, place, best
  if q.rank then
    for _, rank in ipairs({ tonumber(q.rank), RANK.low, RANK.normal, RANK.high }) do
      for k = 1, #READY do
        local next_one = head(READY[k], rank)
        if next_one and is_open(k) then return k, next_one end
      end
    end
  end
  for k = 1, #READY do
    local next_one = head(READY[k])
    idle[k] = next_one == nil
    if next_one and is_open(k) then
      local rank = math.floor(next_one[2] / 1e12)
      if not best or rank < best then chosen, place, best = k, next_one, rank end
    end
  end
  return chosen, place
end

-- The agents whose workers are to be told that there is more: the one of the run that was taken, and those with a limit,
-- as the end of a run of theirs in this very slot may be what lets the next one begin.
local function with_more(taken, more)
  local numbers = {}
  for k = 1, #READY do
    local told = more
    if k ~= taken then
      local name = agent_of(READY[k])
      local limit = not idle[k] and redis.call('HMGET', beside(READY[k], 'limits'), 'agent:' .. name, 'default:' .. name)
      told = limit and (limit[1] or limit[2]) and redis.call('EXISTS', READY[k]) == 1
    end
    if told and must_wake(READY[k], TURNS[k], now) == '1' then numbers[#numbers + 1] = k end
  end
  return numbers
end

-- What is ready and cannot be taken (it was taken by its name, stopped, or its session is gone) is passed over.
for _ = 1, 1000 do
  local k, place = choose()
  if not k then
    redis.call('HDEL', SLOTS, q.slot)
    return { 'none', damaged }
  end
  local id, score = place[1], place[2]
  local found, r = pcall(object, run_key(id))
  local known, s = pcall(object, session_key(found and r.session or ''))
  local root = known and s.root or ''
  local more = leave_ready(READY[k], TURNS[k], id, root, score)
  if not found or (r.state == 'queued' and (not known or s.run == id)) then
    local room = room_in_tree(READY[k], root)
    if room and room <= 0 then
      redis.call('ZADD', beside(READY[k], 'blocked:' .. root), 'NX', score, id)
      redis.call('SADD', beside(READY[k], 'blocked'), root)
    else
      local fine, load = found and known, found and s or r
      if fine then fine, load = pcall(load_of, id, s, r) end
      if fine then
        hold(load, session_key(r.session), run_key(id), KEYS[1], QUEUED, id, claim, q.worker, now, q.versions[k])
        redis.call('HSET', SLOTS, q.slot, claim .. ' ' .. id .. ' ' .. k)
        return answer(load, k, with_more(k, more))
      end
      damaged[#damaged + 1] = id
      damaged[#damaged + 1] = type(load) == 'table' and load.err or tostring(load)
    end
  end
end
return { 'none', damaged }
