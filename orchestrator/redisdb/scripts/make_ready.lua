-- make_ready: the sweep comes to a queued run: it is ready from now on, if it is not so already and its wait has passed; it
-- is looked at again ever more rarely. A run that is tried again becomes ready this way.
-- KEYS  1 run
-- ARGV  1 request: base_ms, cap_ms
-- Returns  {'ready', '1': tell workers of it | '0', session, agent, cause} | {'wait'} | {'gone', state}
-- include: base
-- include: request
-- include: ready
local id, QUEUED = string.match(KEYS[1], '[^:]+$'), in_shard('queued')
local now = clock(q.now)
local r = fields(KEYS[1], 'state', 'not_before', 'wait', 'session', 'cause')
if r.state ~= 'queued' then
  redis.call('ZREM', QUEUED, id)
  return { 'gone', r.state }
end
local base, cap = q.base_ms or 0, q.cap_ms or 0
-- One that is to be tried again later waits no longer than it was told to, also when the clock has gone back since.
local left = count(r.not_before) - now
if left > 0 then
  if left > count(r.wait) then
    left = count(r.wait)
    redis.call('HSET', KEYS[1], 'not_before', now + left)
  end
  redis.call('ZADD', QUEUED, now + math.min(left, cap), id)
  return { 'wait' }
end
local s = fields(session_key(r.session), 'root', 'priority', 'agent')
local READY, TURNS = in_shard('ready:' .. s.agent), in_shard('turns:' .. s.agent)
redis.call('HSET', KEYS[1], 'not_before', 0)
local looks = redis.call('HINCRBY', KEYS[1], 'dispatches', 1)
redis.call('ZADD', QUEUED, now + math.min(cap, base * 2 ^ math.min(looks - 1, 20)), id)
make_ready(READY, TURNS, id, s.root, s.priority)
return { 'ready', must_wake(READY, TURNS, now), r.session, s.agent, r.cause }
