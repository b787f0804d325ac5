-- hold_back: a provider said that it takes no calls under a key for a while: nobody makes one before that has ended.
-- KEYS  1 provider_held
-- ARGV  1 now or ''  2 ms
-- Returns  {until, in ms since the epoch}: the latest that anybody was told
-- include: base
local now = clock(ARGV[1])
local till = math.max(count(redis.call('GET', KEYS[1])), now + tonumber(ARGV[2]))
redis.call('SET', KEYS[1], string.format('%.0f', till), 'PX', math.max(1, math.ceil(till - now)))
return { string.format('%.0f', till) }
