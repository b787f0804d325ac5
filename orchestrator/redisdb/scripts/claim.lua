-- claim: a worker takes a queued run under a random claim id. The same claim id, sent twice, is one claim.
-- The answer is all that the worker needs: what a run carries does not change under its holder. All of it is read, and
-- the records that the ledger keeps as JSON are looked into, before anything is written: what is damaged is not taken.
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
  return facts
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

local damage = nil
local function read(what, text)
  if not text or text == '' then return {} end
  local fine, value = pcall(cjson.decode, text)
  if fine and type(value) == 'table' then return value end
  damage = damage or what
  return {}
end

local r = fields(KEYS[2], 'state', 'claim', 'not_before')
if r.state == '' then return { 'refused', 'unknown' } end
local again = r.state == 'running' and r.claim == ARGV[3]
if not again and r.state ~= 'queued' then return { 'refused', r.state } end
if not again and redis.call('HGET', KEYS[1], 'run') ~= ARGV[2] then return { 'refused', 'superseded' } end
-- It is to be tried again later, and an old message for it may come at any time.
if not again and count(r.not_before) > now then return { 'refused', 'waiting' } end

local session, run = object(KEYS[1]), object(KEYS[2])
read('waiting policy', session.waiting)
read('chain', session.chain)
local ids = read('list of items', run.items)
local records, texts = values(KEYS[5], ids), values(KEYS[6], ids)
local own = redis.call('HMGET', KEYS[6], 'prompt', 'state')
for i, record in ipairs(records) do
  if record and not read('item ' .. tostring(ids[i]), record).state then damage = damage or 'item ' .. tostring(ids[i]) end
end
if damage then return redis.error_reply('ERR the ' .. damage .. ' of run ' .. ARGV[2] .. ' is damaged') end
redis.call('ZCARD', KEYS[3])
redis.call('ZCARD', KEYS[4])

if not again then
  local function set(key, facts, ...)
    local given = {...}
    for i = 1, #given, 2 do facts[given[i]] = tostring(given[i + 1]) end
    redis.call('HSET', key, ...)
  end
  set(KEYS[2], run, 'state', 'running', 'claim', ARGV[3], 'beat', '0', 'worker', ARGV[4], 'started_ms',
    string.format('%.0f', now), 'dispatches', '0', 'attempt', string.format('%.0f', count(run.attempt) + 1))
  set(KEYS[1], session, 'state', 'running', 'updated_ms', string.format('%.0f', now))
  redis.call('ZADD', KEYS[3], now, ARGV[2])
  redis.call('ZREM', KEYS[4], ARGV[2])
end
return { 'held', cjson.encode(session), cjson.encode(run), own[1], own[2], records, texts }
