-- route_done: messages whose effect the ledger has already: each is marked seen, counted and acknowledged.
-- KEYS  for each message  1 stream  2 seen mark  3 conversation
-- ARGV  1 group  2 lifetime of a conversation in ms
--       for each message  1 entry id  2 mark's lifetime in ms  3 first message of its chain
--       4 most messages that its conversation may have, or 0: it neither counts nor is refused  5 digest
--       6 the program outside of the stack that it is for, or '': it takes part in the conversation from now on
-- Returns  one letter for each message: d done | x duplicate | o its id is another message's | c its chain is wrong
--          | l its conversation is too long; on the last three it was not acknowledged
-- Complexity: O(messages).
-- include: mark
local group, ttl_ms = ARGV[1], ARGV[2]
local verdicts = {}
-- What is the same for several messages is asked and written once: conversations by key, entries by stream.
local books, order = {}, {}
local entries, streams = {}, {}

local function book_of(key)
  local book = books[key]
  if not book then
    local known = redis.call('HMGET', key, 'root', 'count')
    book = { key = key, root = known[1], fresh = not known[1], count = tonumber(known[2] or 0), added = 0 }
    books[key] = book
    order[#order + 1] = book
  end
  return book
end

for n = 1, #KEYS / 3 do
  local stream, seen, book = KEYS[n * 3 - 2], KEYS[n * 3 - 1], book_of(KEYS[n * 3])
  local a = 2 + (n - 1) * 6
  local entry, mark_ms, first, limit, digest = ARGV[a + 1], ARGV[a + 2], ARGV[a + 3], tonumber(ARGV[a + 4]), ARGV[a + 5]
  local wrong = nil
  if book.root and book.root ~= first then
    wrong = 'c'
  elseif limit > 0 and book.count + book.added >= limit then
    wrong = 'l'
  end
  local verdict = 'd'
  if not wrong and redis.call('SET', seen, entry .. ' ' .. digest, 'NX', 'PX', mark_ms) then
    book.root = first
    book.used = true
    if limit > 0 then book.added = book.added + 1 end
  else
    local standing = marked(seen, entry, digest)
    if not standing then
      verdict = wrong
    elseif standing == 'duplicate' then
      verdict = 'x'
    elseif standing == 'other' then
      verdict = 'o'
    else
      mark(seen, entry, digest, mark_ms)
    end
  end
  local program = ARGV[a + 6]
  if verdict == 'd' and program ~= '' then
    redis.call('HSET', book.key, 'party:' .. program, '1')
    book.root = book.root or first
    book.used = true
  end
  if verdict == 'd' or verdict == 'x' then
    if not entries[stream] then
      entries[stream] = {}
      streams[#streams + 1] = stream
    end
    table.insert(entries[stream], entry)
  end
  verdicts[n] = verdict
end
for _, book in ipairs(order) do
  if book.used then
    if book.fresh then redis.call('HSET', book.key, 'root', book.root) end
    if book.added > 0 then redis.call('HINCRBY', book.key, 'count', book.added) end
    redis.call('PEXPIRE', book.key, ttl_ms)
  end
end
for _, stream in ipairs(streams) do
  redis.call('XACK', stream, group, unpack(entries[stream]))
end
return table.concat(verdicts)
