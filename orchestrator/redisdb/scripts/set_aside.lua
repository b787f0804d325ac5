-- set_aside: a key that another program has overwritten with another type is kept under another name for a while.
-- Harmless to repeat: a key that is missing, or is what it has to be, stays as it is.
-- KEYS  1 name  2 aside
-- ARGV  1 the type that it has to be  2 how long it is kept, in ms  3… fields and values that a hash has from now on
-- Returns  1: it was set aside | 0
local found = redis.call('TYPE', KEYS[1]).ok
if found == 'none' or found == ARGV[1] then return 0 end
redis.call('RENAME', KEYS[1], KEYS[2])
redis.call('PEXPIRE', KEYS[2], ARGV[2])
for i = 3, #ARGV, 2 do redis.call('HSET', KEYS[1], ARGV[i], ARGV[i + 1]) end
return 1
