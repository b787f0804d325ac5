-- unpin: any version of its agent may go on with a session from now on; its run that is ready is so for every worker.
-- KEYS  1 session  2 run|session  3 ready  4 turns
-- ARGV  1 now or ''  2 run whose key came, or ''
-- Returns  {'unpinned', '1': tell workers of its run | '0'} | {'free'}: it is bound to no version | {'unknown'}
--          | {'run', its id}: pass the key of that run
-- include: base
-- include: ready
local now = clock(ARGV[1])
local s = fields(KEYS[1], 'id', 'run', 'agent', 'version', 'on_deploy', 'root', 'priority')
if s.id == '' then return { 'unknown' } end
if s.on_deploy == '' or s.on_deploy == 'latest' then return { 'free' } end
if s.run ~= ARGV[2] then return { 'run', s.run } end
local ready, turns = in_lane(KEYS[3], KEYS[4], s)
redis.call('HSET', KEYS[1], 'on_deploy', 'latest', 'updated_ms', now)
if ready == KEYS[3] or s.run == '' or not redis.call('ZSCORE', ready, s.run) then return { 'unpinned', '0' } end
leave_ready(ready, turns, s.run, s.root)
make_ready(KEYS[3], KEYS[4], s.run, s.root, s.priority)
return { 'unpinned', must_ring(KEYS[3], KEYS[4], now) }
