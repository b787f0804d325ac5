-- release_call: a call of a model is over. Said twice, it counts once.
-- KEYS  1 provider_held
-- ARGV  1 request: model; call: its id; second in which it was counted; counted: tokens; tokens that it took, as text, else as many;
--         took_ms
-- Returns  {'done'} | {'unknown'}: it has ended, or has taken longer than it may
-- include: base
-- include: request
local COUNTS, CALLS = in_shard('counts:' .. q.model), in_shard('calls:' .. q.model)
if redis.call('ZREM', CALLS, q.call) == 0 then return { 'unknown' } end
local name = 't:' .. string.format('%.0f', q.second)
if q.tokens and redis.call('HEXISTS', COUNTS, name) == 1 then
  local now = count(redis.call('HGET', COUNTS, name)) - (q.counted or 0) + tonumber(q.tokens)
  redis.call('HSET', COUNTS, name, string.format('%.0f', math.max(0, now)))
end
local before = count(redis.call('HGET', COUNTS, 'ms'))
local took = q.took_ms or 0
redis.call('HSET', COUNTS, 'ms', string.format('%.0f', before > 0 and before * 0.8 + took * 0.2 or took))
return { 'done' }
