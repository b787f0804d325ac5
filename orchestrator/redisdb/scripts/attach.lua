-- attach: the holder of a run attaches a text to what its session will answer; a later one of the same name replaces it.
-- KEYS  1 bodies  2 run
-- ARGV  1 claim  2 field of the bodies  3 text
-- Returns  {'done'} | {'lost'}
-- include: base
local r = fields(KEYS[2], 'state', 'claim')
if r.state ~= 'running' or r.claim ~= ARGV[1] then return { 'lost' } end
redis.call('HSET', KEYS[1], ARGV[2], ARGV[3])
return { 'done' }
