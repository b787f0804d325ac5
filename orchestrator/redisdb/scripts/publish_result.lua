-- publish_result: the result of a root has been stored where its caller waits; its tree may expire from now on.
-- KEYS  1 session
-- ARGV  1 request: ttl_ms: lifetime of a finished tree
-- Returns  {'settled'} | {'unknown'} | {'child'}: nobody is owed its result but its parent
-- include: base
-- include: request
local id, RESULTS, TIMERS = session_of(KEYS[1]), in_shard('results'), in_shard('timers')
local now = clock(q.now)
check('ZCARD', RESULTS, TIMERS)
redis.call('ZREM', RESULTS, id)
local s = fields(KEYS[1], 'id', 'root')
if s.id == '' then return { 'unknown' } end
if s.root ~= s.id then return { 'child' } end
redis.call('HSET', KEYS[1], 'settled_ms', now)
redis.call('ZADD', TIMERS, now + (q.ttl_ms or 0), 'expire|' .. id)
return { 'settled' }
