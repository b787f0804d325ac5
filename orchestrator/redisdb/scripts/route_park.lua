-- route_park: an entry that cannot be carried out now waits, durably, and is acknowledged.
-- An entry that is not pending any more was dealt with by another router: nothing happens then.
-- KEYS  1 parked
-- ARGV  1 request: group, entry and stream (a key without the shard) of the message; parked: its id from now on; due_ms: when to look at
--         it again; reason: what it waits for, in words; session that it launches; task: its task-id, if it waits for other
--         tasks, and tasks: these as a JSON list; conversation
--       2… field, value, … of the message
-- Returns  1 | 0: another router was first
-- Complexity: O(log(parked) + tasks it waits for).
-- include: request
-- A key of another type is found before the entry is acknowledged.
redis.call('ZCARD', KEYS[1])
if redis.call('XACK', in_shard(q.stream), q.group, q.entry) == 0 then return 0 end
redis.call('HSET', in_shard('parked:' .. q.parked), unpack(ARGV, 2))
redis.call('ZADD', KEYS[1], q.due_ms or 0, q.parked)
-- A copy of the launch says nothing of the session.
local launched = q.session and session_key(q.session)
if launched and redis.call('HGET', launched, 'entry') == q.parked then
  redis.call('HSET', launched, 'parked', q.reason or '')
end
if q.task then
  local conversation = in_shard(q.conversation)
  redis.call('HSET', conversation, 'held:' .. q.task, q.tasks or '[]')
  -- A task that nothing has ever waited for closes no circle.
  for _, task in ipairs(cjson.decode(q.tasks or '[]')) do redis.call('HSET', conversation, 'wanted:' .. task, '1') end
end
return 1
