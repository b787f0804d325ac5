-- renew: the holder's heartbeat; its counter is what the reaper watches. Tells whether a stop was asked for.
-- KEYS  1 run
-- ARGV  1 claim id
-- Returns  {'held', reason to stop or ''} | {'lost'}
-- include: base
local r = held_run(KEYS[1], ARGV[1], 'stop')
if not r then return { 'lost' } end
redis.call('HINCRBY', KEYS[1], 'lease_version', 1)
return { 'held', r.stop }
