-- replace_revocations: puts a list of revocations in the place of the one that its writer has read. Safe to repeat.
-- Which list counts is decided by its readers, who check the operator's signature and the number.
-- KEYS  1 public keys
-- ARGV  1 field of the list  2 the list that was read there, empty if there was none  3 the new list
-- Returns  1 if the new list stands, 0 if another one was put there meanwhile
local known = redis.call('HGET', KEYS[1], ARGV[1]) or ''
if known == ARGV[3] then return 1 end
if known ~= ARGV[2] then return 0 end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[3])
return 1
