-- renew: the holder's heartbeat; its counter is what the reaper watches. Tells whether a stop was asked for.
-- KEYS  1 run
-- ARGV  1 claim id
-- Returns  {'held', reason to stop or ''} | {'lost'}
-- include: base
local r = fields(KEYS[1], 'state', 'claim', 'stop')
if r.state ~= 'running' or r.claim ~= ARGV[1] then return { 'lost' } end
redis.call('HINCRBY', KEYS[1], 'lease_version', 1)
return { 'held', r.stop }
