-- claim_next: a slot takes the next ready run of the agents that it serves, under a random claim id. The most urgent run goes
-- first; of several agents' equally urgent ones, that of the agent named first, so that a caller who names them in a new order
-- each time is fair to all. The same claim id, sent twice, is one claim. Runs of an agent that is paused, or that has as many
-- at work as it may, stay ready. A run of a tree that has as many at work as it may is blocked until one of these ends.
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

-- For each agent that has ready runs, the place of its first one: run, score, and whether there are others.
local first = {}

-- Looks at the agents `from` … `to`, so many of which have ready runs: where only a few have, at few of the others.
local function look(from, to, busy)
  if busy == 0 then return end
  if from == to then
    local found = redis.call('ZRANGE', READY[from], 0, 1, 'WITHSCORES')
    first[from] = { run = found[1], score = tonumber(found[2]), others = found[3] ~= nil }
    return
  end
  local middle = math.floor((from + to) / 2)
  local before = busy > to - from and middle - from + 1 or redis.call('EXISTS', unpack(READY, from, middle))
  look(from, middle, before)
  look(middle + 1, to, busy - before)
end
if #READY > 0 then look(1, #READY, redis.call('EXISTS', unpack(READY))) end

local function rank_of(place) return math.floor(place.score / 1e12) end

-- The place of the first run of an agent that has this rank, or nil.
local function first_of_rank(k, rank)
  local before = first[k] and rank_of(first[k])
  if not before or before >= rank then return before == rank and first[k] or nil end
  local found = redis.call('ZRANGEBYSCORE', READY[k], string.format('%.0f', rank * 1e12),
    string.format('(%.0f', (rank + 1) * 1e12), 'WITHSCORES', 'LIMIT', 0, 1)
  return found[1] and { run = found[1], score = tonumber(found[2]), others = true }
end

-- The agent whose turn it is, with the place of its next run.
local function choose()
  local chosen
  if q.rank then
    for _, rank in ipairs({ tonumber(q.rank), RANK.low, RANK.normal, RANK.high }) do
      for k = 1, #READY do
        local place = first_of_rank(k, rank)
        if place and is_open(k) then return k, place end
      end
    end
  end
  for k = 1, #READY do
    if first[k] and is_open(k) and (not chosen or rank_of(first[k]) < rank_of(first[chosen])) then chosen = k end
  end
  return chosen, first[chosen]
end

-- The agents whose workers are to be told that there is more: the one of the run that was taken, and those with a limit,
-- as the end of a run of theirs in this very slot may be what lets the next one begin.
local function with_more(taken, more, known)
  local numbers = {}
  for k = 1, #READY do
    local told = more
    if k ~= taken then
      local name = agent_of(READY[k])
      local limit = first[k] and redis.call('HMGET', beside(READY[k], 'limits'), 'agent:' .. name, 'default:' .. name)
      told = limit and (limit[1] or limit[2])
    end
    if told and must_wake(READY[k], TURNS[k], now, k == taken and known or nil) == '1' then numbers[#numbers + 1] = k end
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
  local id = place.run
  local found, r = pcall(object, run_key(id))
  local known, s = pcall(object, session_key(found and r.session or ''))
  local root = known and s.root or ''
  local more, wakeups = leave_ready(READY[k], TURNS[k], id, root, place)
  if not found or (r.state == 'queued' and (not known or s.run == id)) then
    local room = room_in_tree(READY[k], root)
    if room and room <= 0 then
      redis.call('ZADD', beside(READY[k], 'blocked:' .. root), 'NX', place.score, id)
      redis.call('SADD', beside(READY[k], 'blocked'), root)
    else
      local fine, load = found and known, found and s or r
      if fine then fine, load = pcall(load_of, id, s, r) end
      if fine then
        hold(load, session_key(r.session), run_key(id), KEYS[1], QUEUED, id, claim, q.worker, now, q.versions[k])
        redis.call('HSET', SLOTS, q.slot, claim .. ' ' .. id .. ' ' .. k)
        return answer(load, k, with_more(k, more, wakeups))
      end
      damaged[#damaged + 1], damaged[#damaged + 2] = id, type(load) == 'table' and load.err or tostring(load)
    end
  end
  first[k] = nil
  if more then look(k, k, 1) end
end
return { 'none', damaged }
