-- route_inbox: a message that was carried out goes to the inbox of the external program that it is for, in one step
-- with its acknowledgement. A copy of it is acknowledged only. Where the router died before this step the message is
-- handed out again and its mark is its own: it is carried out a second time, which changes nothing, and comes here.
-- KEYS  1 stream of the entry  2 seen mark  3 inbox  4 totals
-- ARGV  1 group  2 entry id  3 digest  4 most messages of an inbox  5 program  6 envelope
-- Returns  1 delivered | 0: it was before, by another router, or is a copy
-- Complexity: O(1), and the messages that leave a full inbox.
-- include: mark
if marked(KEYS[2], ARGV[2], ARGV[3]) ~= 'own' then
  redis.call('XACK', KEYS[1], ARGV[1], ARGV[2])
  return 0
end
if #redis.call('XPENDING', KEYS[1], ARGV[1], ARGV[2], ARGV[2], 1) == 0 then return 0 end
-- The first write is the one that may be refused: by a key of another type, or when its program has used up the ids.
local added = redis.pcall('XADD', KEYS[3], '*', 'envelope', ARGV[6])
if type(added) == 'table' then
  return redis.error_reply(added.err .. '; rename ' .. KEYS[3] .. ', and the router makes the inbox anew')
end
redis.call('XACK', KEYS[1], ARGV[1], ARGV[2])
if redis.call('XLEN', KEYS[3]) > tonumber(ARGV[4]) then
  local dropped = redis.call('XTRIM', KEYS[3], 'MAXLEN', ARGV[4])
  redis.call('HINCRBY', KEYS[4], 'inbox-dropped:' .. ARGV[5], dropped)
end
return 1
