-- route_unpark: a message that waited goes back into its stream, at its priority.
-- Its mark is set to the new entry, so that this one is known for what waited and a copy of it for a duplicate;
-- unless a copy was acted upon meanwhile, whose mark stays.
-- KEYS  1 parked
-- ARGV  1 request: parked: its id; entry: the id under which it came last; stream and seen: keys without the shard; mark_ms that the
--         mark lives; session that it launches; task: its task-id, if it waited for other tasks; conversation
-- Returns  new entry id | false: another router was first
-- Complexity: O(log(parked)).
-- include: base
-- include: request
-- include: mark
local RECORD, TOTALS, STREAM = in_shard('parked:' .. q.parked), in_shard('totals'), in_shard(q.stream)
local SEEN, SESSION = in_shard(q.seen), q.session and session_key(q.session)
check('XLEN', STREAM)
check('HLEN', TOTALS)
if redis.call('ZREM', KEYS[1], q.parked) == 0 then return false end
local facts = redis.call('HMGET', RECORD, 'envelope', 'attempt', 'since', 'session')
redis.call('DEL', RECORD)
if not facts[1] then return false end
-- Of an encrypted launch the entry says which session it begins.
local id = append(STREAM, TOTALS, 'envelope', facts[1], 'attempt', facts[2], 'since', facts[3] or '',
  unpack(facts[4] and facts[4] ~= '' and { 'session', facts[4] } or {}))
local standing = marked(SEEN, q.entry, '')
if not standing or standing == 'own' then redis.call('SET', SEEN, id, 'PX', q.mark_ms) end
if q.task then redis.call('HDEL', in_shard(q.conversation), 'held:' .. q.task) end
if SESSION and redis.call('HGET', SESSION, 'entry') == q.parked then
  redis.call('HDEL', SESSION, 'parked')
  redis.call('HSET', SESSION, 'entry', string.match(q.parked, '^(.*:)') .. id)
end
return id
