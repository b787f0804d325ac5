-- release_call: a call of a model is over. Said twice, it counts once.
-- KEYS  1 provider_counts  2 provider_calls
-- ARGV  1 now or ''  2 id of the call  3 second in which it was counted  4 tokens that were counted
--       5 tokens that it took, or '': as many  6 ms that it took
-- Returns  {'done'} | {'unknown'}: it has ended, or has taken longer than it may
-- include: base
if redis.call('ZREM', KEYS[2], ARGV[2]) == 0 then return { 'unknown' } end
local name = 't:' .. ARGV[3]
if ARGV[5] ~= '' and redis.call('HEXISTS', KEYS[1], name) == 1 then
  local now = count(redis.call('HGET', KEYS[1], name)) - tonumber(ARGV[4]) + tonumber(ARGV[5])
  redis.call('HSET', KEYS[1], name, string.format('%.0f', math.max(0, now)))
end
local before = count(redis.call('HGET', KEYS[1], 'ms'))
local took = tonumber(ARGV[6])
redis.call('HSET', KEYS[1], 'ms', string.format('%.0f', before > 0 and before * 0.8 + took * 0.2 or took))
return { 'done' }
