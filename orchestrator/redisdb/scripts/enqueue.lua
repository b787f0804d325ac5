-- enqueue: put something into a session's queue from outside any run: a user's prompt or reply, a message of the system.
-- Idempotent by item id.
-- KEYS  1 session  2 items  3 bodies  4 queue  5 waiting  6 session_events  7 totals  8 stream
--       9 session@speaker  10 tree  11 session@root
-- ARGV  1 now or ''  2 item id  3 record as JSON  4 text  5 envelope or ''  6 '1': it opens a question of KEYS[9]
--       7 id of the question it answers or ''  8 max runs in the tree, or '' for what is never refused
-- Returns  {'queued', seq} | {'exists', '1': with this text, '0': with another, '': its text is gone} | {'closed', state} | {'unknown'} | {'answered'}: it has its reply already
--          | {'limit', name, limit}
-- include: base
-- include: place

-- A run that waits for this answer without its slot goes on with the next sweep, and not when it would have looked again.
local function wake(now)
  local run = redis.call('HGET', KEYS[1], 'run')
  if not run or run == '' then return end
  local key = beside(KEYS[1], 'run:' .. run)
  local r = redis.call('HMGET', key, 'state', 'awaits:' .. ARGV[2])
  if r[1] ~= 'queued' or not r[2] then return end
  redis.call('HSET', key, 'not_before', 0, 'wait', 0)
  redis.call('ZADD', beside(KEYS[1], 'queued'), now, run)
end

local now = clock(ARGV[1])
if redis.call('HEXISTS', KEYS[2], ARGV[2]) == 1 then
  local text = redis.call('HGET', KEYS[3], ARGV[2])
  return { 'exists', text and (text == ARGV[4] and '1' or '0') or '' }
end
if ARGV[8] ~= '' and runs_of(redis.call('ZCARD', KEYS[10]), KEYS[11]) >= tonumber(ARGV[8]) then
  return { 'limit', 'max_runs_per_tree', ARGV[8] }
end
local refused, seq = place(now, ARGV[2], cjson.decode(ARGV[3]), ARGV[4], ARGV[6], ARGV[7], true)
if refused then return refused end
publish(KEYS[8], KEYS[7], ARGV[5])
if ARGV[7] ~= '' then wake(now) end
return { 'queued', tostring(seq) }
