-- submit_due: the time of a scheduled session has come: its task-delegation is published as it was signed. Sent twice,
-- by several reapers or after a crash, it is published once. As a message that waited, it is told by its duplicate mark
-- from one that is too old.
-- KEYS  1 session  2 bodies  3 timers  4 totals  5 stream  6 mark
-- ARGV  1 now or ''  2 session id  3 mark's lifetime in ms
-- Returns  {'submitted'} | {'early'}: the timer stays | {'gone', state}: it was stopped, or begun before
-- include: base
local now = clock(ARGV[1])
local s = fields(KEYS[1], 'state', 'due_ms', 'time_limit_ms')
if s.state ~= 'scheduled' then
  redis.call('ZREM', KEYS[3], 'submit|' .. ARGV[2])
  return { 'gone', s.state }
end
if count(s.due_ms) > now then
  redis.call('ZADD', KEYS[3], s.due_ms, 'submit|' .. ARGV[2])
  return { 'early' }
end
local envelope = redis.call('HGET', KEYS[2], 'envelope')
if not envelope then return redis.error_reply('ERR the task-delegation of scheduled session ' .. ARGV[2] .. ' is gone') end
check('XLEN', KEYS[5])
check('HLEN', KEYS[4])
local entry = publish(KEYS[5], KEYS[4], envelope, 'attempt', '1', 'since', string.format('%.0f', now), 'session', ARGV[2])
redis.call('SET', KEYS[6], string.match(entry, '[^:]*$'), 'PX', ARGV[3])
redis.call('HSET', KEYS[1], 'state', 'pending', 'entry', entry, 'updated_ms', now)
changed('session', ARGV[2], '-', 'pending')
-- Its time limit begins with it, however late that is.
limit_time(KEYS[3], KEYS[1], ARGV[2], now, count(s.time_limit_ms))
redis.call('HDEL', KEYS[2], 'envelope')
redis.call('ZREM', KEYS[3], 'submit|' .. ARGV[2])
return { 'submitted' }
