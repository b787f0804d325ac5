-- unsent: the broker did not take a dispatch that was counted: it does not count for the back-off, and is due soon.
-- KEYS  1 run  2 dispatch
-- ARGV  1 now or ''  2 run id  3 base in ms
-- Returns  1 | 0: the run is not queued any more
-- include: base
local now = clock(ARGV[1])
local r = fields(KEYS[1], 'state', 'dispatches')
if r.state ~= 'queued' then return 0 end
if count(r.dispatches) > 0 then redis.call('HINCRBY', KEYS[1], 'dispatches', -1) end
redis.call('ZADD', KEYS[2], now + tonumber(ARGV[3]), ARGV[2])
return 1
