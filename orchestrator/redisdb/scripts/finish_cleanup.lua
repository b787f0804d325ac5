-- finish_cleanup: the children of a closed session are dealt with; nothing more is to be done for it.
-- A deleted one leaves its facts and counts as a tombstone, its dead callbacks included, and nothing else; the parent that was
-- told of its end has from now on what it said then.
-- KEYS  1 session
-- ARGV  1 request: seen_as: the state in which the caller has just gone through all of its items; heard_by: the sessions whose
--         records refer to its large texts, with a space between, where those texts do not go
--       2… keys of its runs, and of its large texts, which the caller looked up
-- Returns  {'kept'} | {'tombstone'} | {'open', callbacks still owed} | {'unseen'}: nobody has been through its items
--          as those of a session in this state: what was stopped or failed first, and deleted then, is seen to again
-- include: base
-- include: request
-- include: ends
local id, ITEMS, CLOSING = session_of(KEYS[1]), KEYS[1] .. ':items', in_shard('closing')
local s = fields(KEYS[1], 'id', 'state', 'owed', 'seen_to', 'parent')
if s.state == '' then
  redis.call('ZREM', CLOSING, id)
  return { 'kept' }
end
if q.seen_as == s.state then
  redis.call('HSET', KEYS[1], 'seen_to', s.state)
elseif s.seen_to ~= s.state then
  return { 'unseen' }
end
if count(s.owed) > 0 then return { 'open', s.owed } end
redis.call('ZREM', CLOSING, id)
if s.state ~= 'deleted' then return { 'kept' } end
-- The records of its children go, and the next cleanup is to find who has its texts still.
if q.heard_by then redis.call('HSET', KEYS[1], 'heard_by', q.heard_by) else redis.call('HDEL', KEYS[1], 'heard_by') end
for name, text in pairs(object(ITEMS)) do
  if cjson.decode(text).state ~= 'dead' then redis.call('HDEL', ITEMS, name) end
end
local text = redis.call('HGET', KEYS[1] .. ':bodies', callback_of(s))
local parent = text and redis.pcall('HGET', session_key(s.parent), 'state')
if type(parent) == 'string' and parent ~= 'deleted' then
  redis.pcall('HSETNX', session_key(s.parent) .. ':bodies', callback_of(s), text)
end
redis.call('DEL', KEYS[1] .. ':bodies', KEYS[1] .. ':queue', KEYS[1] .. ':runs')
for i = 2, #ARGV do redis.call('DEL', ARGV[i]) end
return { 'tombstone' }
