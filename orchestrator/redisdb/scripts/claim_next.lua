-- claim_next: a slot takes the next ready run of the agents that it serves, under a random claim id.
-- The most urgent run goes first; of several agents' equally urgent ones, that of the agent named first, so that a
-- caller who names them in a new order each time is fair to all. The same claim id, sent twice, is one claim.
-- Besides KEYS the script touches the run that it takes, that run's session, and their items and bodies: which run
-- that is is known here only. Their keys carry the hash tag of KEYS, and are made from what ARGV says.
-- KEYS  1 running  2 dispatch  3 slots, then for each agent  ready  turns
-- ARGV  1 now or ''  2 claim id  3 worker  4 slot  5 '1': the slot was rung  6 '1': take what is least urgent
--       7 key of a run without its id  8 key of a session likewise  9 what follows it for its items  10 for its bodies
-- Returns  {'held', … as of claim, number of the agent, '1': tell workers that this agent has more | '0', {damaged}}
--          | {'none', {damaged}};  damaged: run, what is wrong, …: these are ready no more until the sweep puts them back
-- Complexity: O(agents + items that the run carries).
-- include: base
-- include: ready
-- include: claim
local now, claim, rung = clock(ARGV[1]), ARGV[2], ARGV[5] == '1'

local function run_key(id) return ARGV[7] .. id end
local function session_key(id) return ARGV[8] .. id end
local function load_of(id, session)
  local key = session_key(session)
  return load_run(key, run_key(id), key .. ARGV[9], key .. ARGV[10])
end

local damaged = {}
local function answer(load, agent, more)
  local said = held(load)
  said[8], said[9], said[10] = tostring(agent), more, damaged
  return said
end

-- What this slot took last; said again to a claim that was sent twice.
local last = redis.call('HGET', KEYS[3], ARGV[4])
if last then
  local before, id, agent = string.match(last, '^(%S+) (%S+) (%d+)$')
  if before == claim then
    local r = fields(run_key(id), 'state', 'claim', 'session')
    if r.state == 'running' and r.claim == claim then return answer(load_of(id, r.session), agent, '0') end
  end
end

if rung then
  for k = 5, #KEYS, 2 do redis.call('HDEL', KEYS[k], 'rung', 'rings') end
end

-- The place of the next run of an agent: {run, score} or nil.
local function head(ready)
  local found = redis.call('ZRANGE', ready, 0, 0, 'WITHSCORES')
  if ARGV[6] == '1' and #found > 0 then
    local least = redis.call('ZREVRANGE', ready, 0, 0, 'WITHSCORES')
    local rank = math.floor(tonumber(least[2]) / 1e12)
    found = redis.call('ZRANGEBYSCORE', ready, string.format('%.0f', rank * 1e12), '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
  end
  if #found == 0 then return nil end
  return { found[1], tonumber(found[2]) }
end

-- The agent whose turn it is, with the place of its next run.
local function choose()
  local chosen, place, best
  for k = 4, #KEYS, 2 do
    local next_one = head(KEYS[k])
    if next_one then
      local rank = math.floor(next_one[2] / 1e12)
      if ARGV[6] == '1' then rank = -rank end
      if not best or rank < best then chosen, place, best = k, next_one, rank end
    end
  end
  return chosen, place
end

-- What is ready and cannot be taken (it was taken by its name, stopped, or its session is gone) is passed over.
for _ = 1, 1000 do
  local k, place = choose()
  if not k then
    redis.call('HDEL', KEYS[3], ARGV[4])
    return { 'none', damaged }
  end
  local id, score = place[1], place[2]
  local found, r = pcall(fields, run_key(id), 'state', 'session')
  if not found then r = { state = 'queued', session = '' } end
  local key = session_key(r.session)
  local known, s = pcall(fields, key, 'run', 'root')
  leave_ready(KEYS[k], KEYS[k + 1], id, known and s.root or '', score)
  if r.state == 'queued' and (not found or not known or s.run == id) then
    local fine, load = pcall(load_of, id, r.session)
    if fine then
      hold(load, key, run_key(id), KEYS[1], KEYS[2], id, claim, ARGV[3], now)
      redis.call('HSET', KEYS[3], ARGV[4], claim .. ' ' .. id .. ' ' .. (k / 2 - 1))
      local more = redis.call('EXISTS', KEYS[k]) == 1 and must_ring(KEYS[k + 1], now) or '0'
      return answer(load, k / 2 - 1, more)
    end
    damaged[#damaged + 1] = id
    damaged[#damaged + 1] = type(load) == 'table' and load.err or tostring(load)
  end
end
return { 'none', damaged }
