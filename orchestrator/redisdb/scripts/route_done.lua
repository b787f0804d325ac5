-- route_done: a message whose effect the ledger has already: mark it seen, count it, acknowledge it.
-- The mark holds the entry id, so that the same entry, delivered again, is not its own duplicate.
-- KEYS  1 stream  2 seen mark  3 conversation
-- ARGV  1 group  2 entry id  3 mark's lifetime in ms  4 first message of its chain  5 most messages or 0
--       6 lifetime of the conversation in ms
-- Returns  'done' | 'duplicate' | 'chain' | 'limit'; on the last two nothing was acknowledged
-- Complexity: O(1).
-- include: conversation
local mark = redis.call('GET', KEYS[2])
if mark then
  redis.call('XACK', KEYS[1], ARGV[1], ARGV[2])
  if mark == ARGV[2] then return 'done' end
  return 'duplicate'
end
local wrong = converse(KEYS[3], ARGV[4], tonumber(ARGV[5]), ARGV[6])
if wrong ~= '' then return wrong end
redis.call('SET', KEYS[2], ARGV[2], 'PX', ARGV[3])
redis.call('XACK', KEYS[1], ARGV[1], ARGV[2])
return 'done'
