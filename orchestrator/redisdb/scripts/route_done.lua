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
local conversations, order = {}, {}
local entries, streams = {}, {}

local function conversation_of(key)
  local conversation = conversations[key]
  if not conversation then
    local known = redis.call('HMGET', key, 'root', 'count')
    conversation = { key = key, root = known[1], fresh = not known[1], count = tonumber(known[2] or 0), added = 0 }
    conversations[key] = conversation
    order[#order + 1] = conversation
  end
  return conversation
end

for n = 1, #KEYS / 3 do
  local stream, seen, conversation = KEYS[n * 3 - 2], KEYS[n * 3 - 1], conversation_of(KEYS[n * 3])
  local a = 2 + (n - 1) * 6
  local entry, mark_ms, first, limit, digest = ARGV[a + 1], ARGV[a + 2], ARGV[a + 3], tonumber(ARGV[a + 4]), ARGV[a + 5]
  local wrong = nil
  if conversation.root and conversation.root ~= first then
    wrong = 'c'
  elseif limit > 0 and conversation.count + conversation.added >= limit then
    wrong = 'l'
  end
  local verdict = 'd'
  if not wrong and redis.call('SET', seen, entry .. ' ' .. digest, 'NX', 'PX', mark_ms) then
    conversation.root = first
    conversation.used = true
    if limit > 0 then conversation.added = conversation.added + 1 end
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
    redis.call('HSET', conversation.key, 'party:' .. program, '1')
    conversation.root = conversation.root or first
    conversation.used = true
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
for _, conversation in ipairs(order) do
  if conversation.used then
    if conversation.fresh then redis.call('HSET', conversation.key, 'root', conversation.root) end
    if conversation.added > 0 then redis.call('HINCRBY', conversation.key, 'count', conversation.added) end
    redis.call('PEXPIRE', conversation.key, ttl_ms)
  end
end
for _, stream in ipairs(streams) do
  redis.call('XACK', stream, group, unpack(entries[stream]))
end
return table.concat(verdicts)
