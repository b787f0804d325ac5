-- route_inbox: a message that was carried out goes to the inbox of the external program that it is for, in one step
-- with its acknowledgement. A copy of it is acknowledged only. Where the router died before this step the message is
-- handed out again and its mark is its own: it is carried out a second time, which changes nothing, and comes here.
-- KEYS  1 inbox
-- ARGV  1 request: mark (see lib/mark.lua); program; most messages of an inbox  2 envelope
-- Returns  1 delivered | 0: it was before, by another router, or is a copy
-- Complexity: O(1), and the messages that leave a full inbox.
-- include: mark
local m = q.mark
if marked(in_shard(m.seen), m.entry, m.digest) ~= 'own' then
  acknowledge(m)
  return 0
end
if #redis.call('XPENDING', in_shard(m.stream), m.group, m.entry, m.entry, 1) == 0 then return 0 end
-- The first write is the one that may be refused: by a key of another type, or when its program has used up the ids.
local added = redis.pcall('XADD', KEYS[1], '*', 'envelope', ARGV[2])
if type(added) == 'table' then
  return redis.error_reply(added.err .. '; rename ' .. KEYS[1] .. ', and the router makes the inbox anew')
end
acknowledge(m)
if redis.call('XLEN', KEYS[1]) > (q.most or 0) then
  local dropped = redis.call('XTRIM', KEYS[1], 'MAXLEN', q.most or 0)
  redis.call('HINCRBY', in_shard('totals'), 'inbox-dropped:' .. q.program, dropped)
end
return 1
