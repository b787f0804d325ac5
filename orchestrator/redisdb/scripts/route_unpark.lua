-- route_unpark: a message that waited goes back into its stream, at its priority.
-- Its mark is set to the new entry, so that this one is known for what waited and a copy of it for a duplicate;
-- unless a copy was acted upon meanwhile, whose mark stays.
-- KEYS  1 parked  2 record  3 stream  4 totals  5 mark  6 session|record  7 conversation
-- ARGV  1 parked id  2 mark's lifetime in ms  3 its task-id, or '' if it waited for no other tasks
--       4 entry id under which it came last
-- Returns  new entry id | false: another router was first
-- Complexity: O(log(parked)).
-- include: base
-- include: mark
check('XLEN', KEYS[3])
check('HLEN', KEYS[4])
if redis.call('ZREM', KEYS[1], ARGV[1]) == 0 then return false end
local facts = redis.call('HMGET', KEYS[2], 'envelope', 'attempt', 'since', 'session')
redis.call('DEL', KEYS[2])
if not facts[1] then return false end
-- Of an encrypted launch the entry says which session it begins.
local id = append(KEYS[3], KEYS[4], 'envelope', facts[1], 'attempt', facts[2], 'since', facts[3] or '',
  unpack(facts[4] and facts[4] ~= '' and { 'session', facts[4] } or {}))
local standing = marked(KEYS[5], ARGV[4], '')
if not standing or standing == 'own' then redis.call('SET', KEYS[5], id, 'PX', ARGV[2]) end
if ARGV[3] ~= '' then redis.call('HDEL', KEYS[7], 'held:' .. ARGV[3]) end
if KEYS[6] ~= KEYS[2] and redis.call('HGET', KEYS[6], 'entry') == ARGV[1] then
  redis.call('HDEL', KEYS[6], 'parked')
  redis.call('HSET', KEYS[6], 'entry', string.match(ARGV[1], '^(.*:)') .. id)
end
return id
