-- step: the holder of a run records what a step gave, under the step's key. What an earlier try recorded stays; only
-- an error that has retries left is replaced. The same record, sent twice, is one.
-- The hash `steps` holds for each step `h:<key>`, its header as a JSON object, and `p:<key>`, its value; `v:<sha256>`
-- for each value that is stored beside it under `<steps>:<sha256>`; and `bytes`. How many steps there are is a field of
-- the run, so that one which somebody takes away is missed.
-- KEYS  1 session
-- ARGV  1 request: run, claim; key of the step; size of the value in bytes; sha256: of the value, if it is stored beside it;
--         most_steps and most_bytes that a run may have
--       2 header, a JSON object that is not empty  3 value
-- Returns  {'done'} | {'exists', header, value} | {'full', name of the limit, its value}
--          | {'value'}: the stored value is gone, store it again | {'lost'}
-- include: base
-- include: request
local RUN = in_shard('run:' .. q.run)
local STEPS = RUN .. ':steps'
local now, claim, key, size = clock(q.now), q.claim, q.key, (q.size or 0)
local r = held_run(RUN, claim, 'steps')
if not r then return { 'lost' } end
local known = redis.call('HMGET', STEPS, 'h:' .. key, 'p:' .. key, 'bytes')
if known[1] then
  -- The holder has read the journal: what cannot be read it means to replace. Each record of its own speaks of more calls.
  local fine, before = pcall(cjson.decode, known[1])
  if fine and before.how ~= 'retry' then
    if before.claim == claim then return { 'done' } end
    return { 'exists', known[1], known[2] or '' }
  end
  if fine and before.claim == claim and (before.tries or 0) >= (cjson.decode(ARGV[2]).tries or 0) then return { 'done' } end
end
local steps, bytes = count(r.steps), count(known[3])
if not known[1] and steps + 1 > (q.most_steps or 0) then return { 'full', 'max_steps_per_run', tostring(q.most_steps or 0) } end
if bytes + size > (q.most_bytes or 0) then return { 'full', 'max_step_bytes_per_run', tostring(q.most_bytes or 0) } end
if q.sha256 then
  if redis.call('PERSIST', STEPS .. ':' .. q.sha256) == 0 and redis.call('EXISTS', STEPS .. ':' .. q.sha256) == 0 then return { 'value' } end
  redis.call('HSET', STEPS, 'v:' .. q.sha256, '1')
end
local header = '{"at_ms":' .. string.format('%.0f', now) .. ',' .. string.sub(ARGV[2], 2)
redis.call('HSET', STEPS, 'h:' .. key, header, 'p:' .. key, ARGV[3], 'bytes', bytes + size)
if not known[1] then
  redis.call('HSET', RUN, 'steps', steps + 1)
  redis.call('HINCRBY', KEYS[1], 'steps', 1)
end
redis.call('HSET', KEYS[1], 'step', key, 'updated_ms', now)
changed('step', session_of(KEYS[1]), string.match(RUN, '[^:]+$'), string.match(ARGV[2], '"how": ?"(%l+)"') or 'recorded',
  (string.gsub(key, '%c', ' ')))
return { 'done' }
