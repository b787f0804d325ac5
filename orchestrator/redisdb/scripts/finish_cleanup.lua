-- finish_cleanup: the children of a closed session are dealt with; nothing more is to be done for it.
-- A deleted one leaves its facts and counts as a tombstone, its dead callbacks included, and nothing else.
-- KEYS  1 session  2 items  3 bodies  4 queue  5 closing  6 runs
--       7… keys of its runs, and of its large texts, which the caller looked up
-- ARGV  1 session id  2 the state in which the caller has just gone through all of its items, or ''
--       3 the sessions whose records refer to its large texts, with a space between, or '': those texts did not come as keys
-- Returns  {'kept'} | {'tombstone'} | {'open', callbacks still owed} | {'unseen'}: nobody has been through its items
--          as those of a session in this state: what was stopped or failed first, and deleted then, is seen to again
-- include: base
local s = fields(KEYS[1], 'state', 'owed', 'seen_to')
if s.state == '' then
  redis.call('ZREM', KEYS[5], ARGV[1])
  return { 'kept' }
end
if ARGV[2] == s.state then
  redis.call('HSET', KEYS[1], 'seen_to', s.state)
elseif s.seen_to ~= s.state then
  return { 'unseen' }
end
if count(s.owed) > 0 then return { 'open', s.owed } end
redis.call('ZREM', KEYS[5], ARGV[1])
if s.state ~= 'deleted' then return { 'kept' } end
-- The records of its children go, and the next cleanup is to find who has its texts still.
if ARGV[3] ~= '' then redis.call('HSET', KEYS[1], 'heard_by', ARGV[3]) else redis.call('HDEL', KEYS[1], 'heard_by') end
local all = redis.call('HGETALL', KEYS[2])
for i = 1, #all, 2 do
  if cjson.decode(all[i + 1]).state ~= 'dead' then redis.call('HDEL', KEYS[2], all[i]) end
end
redis.call('DEL', KEYS[3], KEYS[4])
for i = 6, #KEYS do redis.call('DEL', KEYS[i]) end
return { 'tombstone' }
