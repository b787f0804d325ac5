-- route_done: messages whose effect the ledger has already: each is marked seen, counted and acknowledged.
-- KEYS  1 totals
-- ARGV  1 request: group; keep_ms: lifetime of a conversation; messages, a list of: stream, seen, conversation, entry, digest and
--         mark_ms as in lib/mark.lua; first message of its chain; most messages that its conversation may have, 0: it neither
--         counts nor is refused; program: the one outside of the stack that it is for, or '': it takes part in the conversation
--         from now on
-- Returns  one letter for each message: d done | x duplicate | o its id is another message's | c its chain is wrong
--          | l its conversation is too long; on the last three it was not acknowledged
-- Complexity: O(messages).
-- include: mark
local verdicts = {}
-- What is the same for several messages is asked and written once: conversations by key, entries by stream.
local conversations, entries = {}, {}

local function conversation_of(key)
  local conversation = conversations[key]
  if not conversation then
    local known = redis.call('HMGET', key, 'root', 'count')
    conversation = { key = key, root = known[1], fresh = not known[1], count = tonumber(known[2] or 0), added = 0 }
    conversations[key] = conversation
  end
  return conversation
end

for n, m in ipairs(q.messages) do
  local stream, seen, conversation = in_shard(m.stream), in_shard(m.seen), conversation_of(in_shard(m.conversation))
  local entry, mark_ms, first, limit, digest = m.entry, m.mark_ms, m.first, m.most, m.digest
  local wrong, verdict = nil, 'd'
  if conversation.root and conversation.root ~= first then
    wrong = 'c'
  elseif limit > 0 and conversation.count + conversation.added >= limit then
    wrong = 'l'
  end
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
  if verdict == 'd' and m.program ~= '' then
    redis.call('HSET', conversation.key, 'party:' .. m.program, '1')
    conversation.root = conversation.root or first
    conversation.used = true
  end
  if verdict == 'd' or verdict == 'x' then add(entries, stream, entry) end
  verdicts[n] = verdict
end
for _, conversation in pairs(conversations) do
  if conversation.used then
    if conversation.fresh then redis.call('HSET', conversation.key, 'root', conversation.root) end
    if conversation.added > 0 then redis.call('HINCRBY', conversation.key, 'count', conversation.added) end
    redis.call('PEXPIRE', conversation.key, q.keep_ms)
  end
end
for stream, ids in pairs(entries) do redis.call('XACK', stream, q.group or '', unpack(ids)) end
return table.concat(verdicts)
