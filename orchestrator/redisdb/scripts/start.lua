-- start: the router takes a task-delegation: mark it seen, queue the child's first run, acknowledge.
-- The mark holds the entry id, so that the same entry, delivered again, is not its own duplicate.
-- KEYS  1 session  2 runs  3 run  4 dispatch  5 seen mark  6 stream
-- ARGV  1 now or ''  2 run id  3 message id  4 group  5 entry id  6 mark's lifetime in ms
--       7 ms until it is dispatched again
-- Returns  {'started', run, agent, cause} | {'already', run or ''} | {'duplicate'} | {'unknown'} | {'over', state}
--          | {'task'}: the session was launched by another message; on this and 'unknown' nothing was acknowledged
-- include: base
local now = clock(ARGV[1])
local mark = redis.call('GET', KEYS[5])
if mark and mark ~= ARGV[5] then
  redis.call('XACK', KEYS[6], ARGV[4], ARGV[5])
  return { 'duplicate' }
end
local s = fields(KEYS[1], 'id', 'agent', 'state', 'run', 'runs', 'message')
if s.id == '' then return { 'unknown' } end
if s.message ~= ARGV[3] then return { 'task' } end
redis.call('SET', KEYS[5], ARGV[5], 'PX', ARGV[6])
redis.call('XACK', KEYS[6], ARGV[4], ARGV[5])
if s.state ~= 'pending' then return { 'over', s.state } end
if s.run ~= '' or count(s.runs) > 0 then
  local queued = s.run ~= '' and redis.call('HGET', KEYS[3], 'state') == 'queued'
  if queued then return { 'started', s.run, s.agent, 'start' } end
  return { 'already', s.run }
end
redis.call('HSET', KEYS[3], 'id', ARGV[2], 'session', s.id, 'number', 1, 'cause', 'start', 'state', 'queued',
  'claim', '', 'beat', 0, 'attempt', 0, 'failures', 0, 'lost', 0, 'items', '[]', 'worker', '', 'created_ms', now,
  'started_ms', 0, 'ended_ms', 0, 'stop', '', 'reason', '', 'dispatches', 1)
redis.call('RPUSH', KEYS[2], ARGV[2])
redis.call('HSET', KEYS[1], 'run', ARGV[2], 'runs', 1, 'updated_ms', now)
redis.call('ZADD', KEYS[4], now + tonumber(ARGV[7]), ARGV[2])
return { 'started', ARGV[2], s.agent, 'start' }
