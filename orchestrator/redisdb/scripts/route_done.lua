-- route_done: messages whose effect the ledger has already: each is marked seen, counted and acknowledged.
-- The mark holds the entry id, so that the same entry, delivered again, is not its own duplicate.
-- KEYS  for each message  1 stream  2 seen mark  3 conversation
-- ARGV  1 group  2 lifetime of a conversation in ms
--       for each message  1 entry id  2 mark's lifetime in ms  3 first message of its chain
--       4 most messages that its conversation may have, or 0: it neither counts nor is refused
-- Returns  one letter for each message: d done | x duplicate | c its chain is wrong | l its conversation is too
--          long; on the last two it was not acknowledged
-- Complexity: O(messages).
-- include: conversation
local group, ttl_ms = ARGV[1], ARGV[2]
local verdicts = {}
for n = 1, #KEYS / 3 do
  local stream, seen, book = KEYS[n * 3 - 2], KEYS[n * 3 - 1], KEYS[n * 3]
  local entry, mark_ms, first, limit = ARGV[n * 4 - 1], ARGV[n * 4], ARGV[n * 4 + 1], tonumber(ARGV[n * 4 + 2])
  local mark = redis.call('GET', seen)
  local verdict = 'd'
  if mark then
    if mark ~= entry then verdict = 'x' end
    redis.call('XACK', stream, group, entry)
  else
    local wrong = converse(book, first, limit, ttl_ms)
    if wrong == 'chain' then
      verdict = 'c'
    elseif wrong == 'limit' then
      verdict = 'l'
    else
      redis.call('SET', seen, entry, 'PX', mark_ms)
      redis.call('XACK', stream, group, entry)
    end
  end
  verdicts[n] = verdict
end
return table.concat(verdicts)
