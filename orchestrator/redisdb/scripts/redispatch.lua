-- redispatch: a queued run that nobody claimed is to be sent again; counts how often, for the back-off.
-- KEYS  1 run  2 dispatch
-- ARGV  1 now or ''  2 run id  3 base in ms  4 cap in ms  5 '1': the broker still holds messages
--       6 ms that it waits for its own among them, at first
-- Returns  {'send', session, cause, number of this dispatch} | {'wait'} | {'gone', state}
-- include: base
local now = clock(ARGV[1])
local r = fields(KEYS[1], 'state', 'session', 'cause', 'dispatches', 'sent_ms', 'created_ms', 'not_before', 'wait')
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
-- One that was sent since it was last at work waits for its message, but not for ever: that one may be lost
-- although the broker always has others. It is looked at less and less often, and how long it waits is told by the
-- clock, so that many that wait do not keep one another waiting. Of a clock that has gone back it is sent at once.
local sent, sent_ms = count(r.dispatches), count(r.sent_ms ~= '' and r.sent_ms or r.created_ms)
local until_ms = sent_ms + tonumber(ARGV[6]) * 2 ^ math.min(sent - 1, 20)
if ARGV[5] == '1' and sent > 0 and sent_ms <= now and now < until_ms then
  redis.call('ZADD', KEYS[2], math.min(now + math.max(base, now - sent_ms), until_ms), ARGV[2])
  return { 'wait' }
end
redis.call('HSET', KEYS[1], 'sent_ms', string.format('%.0f', now), 'not_before', 0)
local n = redis.call('HINCRBY', KEYS[1], 'dispatches', 1)
redis.call('ZADD', KEYS[2], now + math.min(cap, base * 2 ^ math.min(n - 1, 20)), ARGV[2])
return { 'send', r.session, r.cause, tostring(n) }
