-- make_ready: the sweep comes to a queued run: it is ready from now on, if it is not so already and its wait has passed; it
-- is looked at again ever more rarely. A run that is tried again becomes ready this way.
-- KEYS  1 run  2 queued  3 session|run  4 ready  5 turns
-- ARGV  1 now or ''  2 run id  3 base in ms  4 cap in ms
-- Returns  {'ready', '1': tell workers of it | '0', version that it is pinned to or ''} | {'wait'} | {'gone', state}
-- include: base
-- include: ready
local now = clock(ARGV[1])
local r = fields(KEYS[1], 'state', 'not_before', 'wait')
if r.state ~= 'queued' then
  redis.call('ZREM', KEYS[2], ARGV[2])
  return { 'gone', r.state }
end
local base, cap = tonumber(ARGV[3]), tonumber(ARGV[4])
-- One that is to be tried again later waits no longer than it was told to, also when the clock has gone back since.
local left = count(r.not_before) - now
if left > 0 then
  if left > count(r.wait) then
    left = count(r.wait)
    redis.call('HSET', KEYS[1], 'not_before', now + left)
  end
  redis.call('ZADD', KEYS[2], now + math.min(left, cap), ARGV[2])
  return { 'wait' }
end
local s = fields(KEYS[3], 'root', 'priority', 'version', 'on_deploy')
local ready, turns = in_lane(KEYS[4], KEYS[5], s)
redis.call('HSET', KEYS[1], 'not_before', 0)
local looks = redis.call('HINCRBY', KEYS[1], 'dispatches', 1)
redis.call('ZADD', KEYS[2], now + math.min(cap, base * 2 ^ math.min(looks - 1, 20)), ARGV[2])
make_ready(ready, turns, ARGV[2], s.root, s.priority)
return { 'ready', must_ring(ready, turns, now), version_of(s) }
