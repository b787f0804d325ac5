-- route_collect: an entry of an external program's outbox goes to the stream of its type and priority, once: another
-- router that holds it, too, finds it acknowledged. Of its fields only the envelope goes along; others could claim
-- what is the stack's own to say.
-- KEYS  1 outbox  2 stream  3 totals  4 what the program said in this minute
-- ARGV  1 group  2 entry id  3 program  4 how many messages it counts as  5… field and value of what goes along
-- Returns  {how many it said in this minute, ms that are left of that} | false: another router was first
-- Complexity: O(1).
-- include: base
-- include: quota
check('XLEN', KEYS[2])
check('HLEN', KEYS[3])
if redis.call('XACK', KEYS[1], ARGV[1], ARGV[2]) == 0 then return false end
redis.call('XDEL', KEYS[1], ARGV[2])
append(KEYS[2], KEYS[3], 'from', ARGV[3], unpack(ARGV, 5))
return { count_said(KEYS[4], ARGV[4]) }
