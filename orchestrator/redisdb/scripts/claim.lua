-- claim: a worker takes a queued run under a random claim id. The same claim id, sent twice, is one claim.
-- The answer is all that the worker needs: what a run carries does not change under its holder.
-- KEYS  1 session  2 run  3 running  4 dispatch  5 items  6 bodies
-- ARGV  1 now or ''  2 run id  3 claim id  4 worker
-- Returns  {'held', session as a JSON object, run likewise, prompt, saved state, {record of each item}, {text of each}}
--          | {'refused', state of the run}
-- Complexity: O(items that the run carries).
-- include: base
local now = clock(ARGV[1])

local function object(key)
  local flat, facts = redis.call('HGETALL', key), {}
  for i = 1, #flat, 2 do facts[flat[i]] = flat[i + 1] end
  return cjson.encode(facts)
end

-- The values of a hash's fields; as many at once as Lua takes arguments.
local function values(key, names)
  local found = {}
  for first = 1, #names, 1000 do
    local page = redis.call('HMGET', key, unpack(names, first, math.min(first + 999, #names)))
    for _, value in ipairs(page) do found[#found + 1] = value end
  end
  return found
end

local function held(carried)
  local ids = carried ~= '' and carried ~= '[]' and cjson.decode(carried) or {}
  local own = redis.call('HMGET', KEYS[6], 'prompt', 'state')
  return { 'held', object(KEYS[1]), object(KEYS[2]), own[1], own[2], values(KEYS[5], ids), values(KEYS[6], ids) }
end

local r = fields(KEYS[2], 'state', 'claim', 'session', 'items')
if r.state == '' then return { 'refused', 'unknown' } end
if r.state == 'running' and r.claim == ARGV[3] then return held(r.items) end
if r.state ~= 'queued' then return { 'refused', r.state } end
if redis.call('HGET', KEYS[1], 'run') ~= ARGV[2] then return { 'refused', 'superseded' } end
redis.call('HSET', KEYS[2], 'state', 'running', 'claim', ARGV[3], 'beat', 0, 'worker', ARGV[4], 'started_ms', now,
  'dispatches', 0, 'waits', 0)
redis.call('HINCRBY', KEYS[2], 'attempt', 1)
redis.call('ZADD', KEYS[3], now, ARGV[2])
redis.call('ZREM', KEYS[4], ARGV[2])
redis.call('HSET', KEYS[1], 'state', 'running', 'updated_ms', now)
return held(r.items)
