-- redispatch: a queued run that nobody claimed is to be sent again; counts how often, for the back-off.
-- KEYS  1 run  2 dispatch
-- ARGV  1 now or ''  2 run id  3 base in ms  4 cap in ms  5 '1': the broker still holds messages, only wait
-- Returns  {'send', session, cause, number of this dispatch} | {'wait'} | {'gone', state}
-- include: base
local now = clock(ARGV[1])
local r = fields(KEYS[1], 'state', 'session', 'cause', 'dispatches')
if r.state ~= 'queued' then
  redis.call('ZREM', KEYS[2], ARGV[2])
  return { 'gone', r.state }
end
local base, cap = tonumber(ARGV[3]), tonumber(ARGV[4])
if ARGV[5] == '1' then
  redis.call('ZADD', KEYS[2], now + base, ARGV[2])
  return { 'wait' }
end
local n = redis.call('HINCRBY', KEYS[1], 'dispatches', 1)
redis.call('ZADD', KEYS[2], now + math.min(cap, base * 2 ^ math.min(n - 1, 20)), ARGV[2])
return { 'send', r.session, r.cause, tostring(n) }
