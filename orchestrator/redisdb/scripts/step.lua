-- step: the holder of a run records what a step gave, under the step's key. What an earlier try recorded stays; only
-- an error that has retries left is replaced. The same record, sent twice, is one.
-- The hash `steps` holds for each step `h:<key>`, its header as a JSON object, and `p:<key>`, its value; `v:<sha256>`
-- for each value that is stored beside it under `<steps>:<sha256>`; and `bytes`. How many steps there are is a field of
-- the run, so that one which somebody takes away is missed.
-- KEYS  1 session  2 run  3 steps  4 step_value|session
-- ARGV  1 now or ''  2 claim  3 key of the step  4 header, a JSON object that is not empty  5 value
--       6 bytes of the value  7 SHA-256 of the stored value or ''  8 steps that a run may have  9 bytes likewise
-- Returns  {'done'} | {'exists', header, value} | {'full', name of the limit, its value}
--          | {'value'}: the stored value is gone, store it again | {'lost'}
-- include: base
local now, claim, key, size = clock(ARGV[1]), ARGV[2], ARGV[3], tonumber(ARGV[6])
local r = held_run(KEYS[2], claim, 'steps')
if not r then return { 'lost' } end
local known = redis.call('HMGET', KEYS[3], 'h:' .. key, 'p:' .. key, 'bytes')
if known[1] then
  -- The holder has read the journal: what cannot be read it means to replace.
  local fine, before = pcall(cjson.decode, known[1])
  if fine and before.how ~= 'retry' then
    if before.claim == claim then return { 'done' } end
    return { 'exists', known[1], known[2] or '' }
  end
  if (string.gsub(known[1], '^{"at_ms":%d+,', '{')) == ARGV[4] and known[2] == ARGV[5] then return { 'done' } end
end
local steps, bytes = count(r.steps), count(known[3])
if not known[1] and steps + 1 > tonumber(ARGV[8]) then return { 'full', 'max_steps_per_run', ARGV[8] } end
if bytes + size > tonumber(ARGV[9]) then return { 'full', 'max_step_bytes_per_run', ARGV[9] } end
if ARGV[7] ~= '' then
  if redis.call('PERSIST', KEYS[4]) == 0 and redis.call('EXISTS', KEYS[4]) == 0 then return { 'value' } end
  redis.call('HSET', KEYS[3], 'v:' .. ARGV[7], '1')
end
local header = '{"at_ms":' .. string.format('%.0f', now) .. ',' .. string.sub(ARGV[4], 2)
redis.call('HSET', KEYS[3], 'h:' .. key, header, 'p:' .. key, ARGV[5], 'bytes', bytes + size)
if not known[1] then
  redis.call('HSET', KEYS[2], 'steps', steps + 1)
  redis.call('HINCRBY', KEYS[1], 'steps', 1)
end
redis.call('HSET', KEYS[1], 'step', key, 'updated_ms', now)
changed('step', session_of(KEYS[1]), string.match(KEYS[2], '[^:]+$'), string.match(ARGV[4], '"how": ?"(%l+)"') or 'recorded',
  (string.gsub(key, '%c', ' ')))
return { 'done' }
