-- route_collect: an entry of an external program's outbox goes to the stream of its type and priority, once: another
-- router that holds it, too, finds it acknowledged. Of its fields only the envelope goes along; others could claim
-- what is the stack's own to say.
-- KEYS  1 outbox  2 stream  3 totals  4 what the program said in this minute
-- ARGV  1 group  2 entry id  3 program  4 envelope, absent where the entry has none
-- Returns  {how many it said in this minute, ms that are left of that} | false: another router was first
-- Complexity: O(1).
-- include: base
check('XLEN', KEYS[2])
check('HLEN', KEYS[3])
if redis.call('XACK', KEYS[1], ARGV[1], ARGV[2]) == 0 then return false end
redis.call('XDEL', KEYS[1], ARGV[2])
append(KEYS[2], KEYS[3], 'from', ARGV[3], unpack(ARGV[4] and { 'envelope', ARGV[4] } or {}))
local said = redis.pcall('INCR', KEYS[4])
if type(said) ~= 'number' then
  -- Somebody has overwritten the counter: it begins again.
  redis.call('DEL', KEYS[4])
  said = redis.call('INCR', KEYS[4])
end
if redis.call('PTTL', KEYS[4]) < 0 then redis.call('PEXPIRE', KEYS[4], 60000) end
return {said, redis.call('PTTL', KEYS[4])}
