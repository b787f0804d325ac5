-- publish_result: the result of a root has been stored where its caller waits; its tree may expire from now on.
-- KEYS  1 session  2 results  3 timers
-- ARGV  1 now or ''  2 session id  3 lifetime of a finished tree in ms
-- Returns  {'settled'} | {'unknown'} | {'child'}: nobody is owed its result but its parent
-- include: base
local now = clock(ARGV[1])
check('ZCARD', KEYS[2], KEYS[3])
redis.call('ZREM', KEYS[2], ARGV[2])
local s = fields(KEYS[1], 'id', 'root')
if s.id == '' then return { 'unknown' } end
if s.root ~= s.id then return { 'child' } end
redis.call('HSET', KEYS[1], 'settled_ms', now)
redis.call('ZADD', KEYS[3], now + tonumber(ARGV[3]), 'expire|' .. ARGV[2])
return { 'settled' }
