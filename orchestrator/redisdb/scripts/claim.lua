-- claim: a worker takes a queued run under a random claim id. The same claim id, sent twice, is one claim.
-- KEYS  1 session  2 run  3 running  4 dispatch
-- ARGV  1 now or ''  2 run id  3 claim id  4 worker
-- Returns  {'held', session as HGETALL, run as HGETALL} | {'refused', state of the run}
-- include: base
local now = clock(ARGV[1])
local r = fields(KEYS[2], 'state', 'claim', 'session')
if r.state == '' then return { 'refused', 'unknown' } end
if r.state == 'running' and r.claim == ARGV[3] then
  return { 'held', redis.call('HGETALL', KEYS[1]), redis.call('HGETALL', KEYS[2]) }
end
if r.state ~= 'queued' then return { 'refused', r.state } end
if redis.call('HGET', KEYS[1], 'run') ~= ARGV[2] then return { 'refused', 'superseded' } end
redis.call('HSET', KEYS[2], 'state', 'running', 'claim', ARGV[3], 'beat', 0, 'worker', ARGV[4], 'started_ms', now)
redis.call('HINCRBY', KEYS[2], 'attempt', 1)
redis.call('ZADD', KEYS[3], now, ARGV[2])
redis.call('ZREM', KEYS[4], ARGV[2])
redis.call('HSET', KEYS[1], 'state', 'running', 'updated_ms', now)
return { 'held', redis.call('HGETALL', KEYS[1]), redis.call('HGETALL', KEYS[2]) }
