-- route_park: an entry that cannot be carried out now waits, durably, and is acknowledged.
-- An entry that is not pending any more was dealt with by another router: nothing happens then.
-- KEYS  1 stream  2 parked  3 record  4 session|record  5 conversation
-- ARGV  1 group  2 entry id  3 parked id  4 when to look at it again, in ms  5 what it waits for, in words
--       6 its task-id, or '' if it waits for no other tasks  7 JSON list of the tasks it waits for
--       8… field, value, … of the message
-- Returns  1 | 0: another router was first
-- Complexity: O(log(parked) + tasks it waits for).
-- A key of another type is found before the entry is acknowledged.
redis.call('ZCARD', KEYS[2])
if redis.call('XACK', KEYS[1], ARGV[1], ARGV[2]) == 0 then return 0 end
redis.call('HSET', KEYS[3], unpack(ARGV, 8))
redis.call('ZADD', KEYS[2], ARGV[4], ARGV[3])
-- A copy of the launch says nothing of the session.
if KEYS[4] ~= KEYS[3] and redis.call('HGET', KEYS[4], 'entry') == ARGV[3] then
  redis.call('HSET', KEYS[4], 'parked', ARGV[5])
end
if ARGV[6] ~= '' then
  redis.call('HSET', KEYS[5], 'held:' .. ARGV[6], ARGV[7])
  -- A task that nothing has ever waited for closes no circle.
  for _, task in ipairs(cjson.decode(ARGV[7])) do redis.call('HSET', KEYS[5], 'wanted:' .. task, '1') end
end
return 1
