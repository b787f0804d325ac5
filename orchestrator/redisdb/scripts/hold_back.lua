-- hold_back: a provider takes no calls under a key for a while: nobody makes one before that has ended.
-- KEYS  1 provider_held
-- ARGV  1 now or ''  2 ms  3 why, in words, if it is not the provider's limits
-- Returns  {until, in ms since the epoch}: the latest that anybody was told
-- include: base
local now = clock(ARGV[1])
local before, why = string.match(redis.call('GET', KEYS[1]) or '', '^(%d+) ?(.*)$')
local till = now + tonumber(ARGV[2])
if count(before) > till then till = count(before) else why = ARGV[3] end
redis.call('SET', KEYS[1], string.format('%.0f %s', till, why), 'PX', math.max(1, math.ceil(till - now)))
return { string.format('%.0f', till) }
