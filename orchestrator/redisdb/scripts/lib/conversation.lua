-- Shared by the router's scripts: what is known of a conversation.

-- Counts a message of a conversation and returns '' or what is wrong with it: 'chain' when its chain does not end at the
-- conversation's first message, 'limit' when the conversation has had as many messages as it may. With `limit` 0 a message neither
-- counts nor is refused. `first` is the last reference of its chain, or its own id when it has none. `own` is its own id, or ''
-- where its chain is taken at its word: a chain of messages that nobody here knows begins no conversation.
local function converse(key, first, limit, own)
  local known = redis.call('HMGET', key, 'root', 'count')
  if known[1] and known[1] ~= first then return 'chain' end
  if not known[1] and own ~= '' and first ~= own and redis.call('HEXISTS', key, 'launch:' .. first) == 0 then
    return 'chain'
  end
  if limit > 0 and tonumber(known[2] or 0) >= limit then return 'limit' end
  if not known[1] then redis.call('HSET', key, 'root', first) end
  if limit > 0 then redis.call('HINCRBY', key, 'count', 1) end
  return ''
end

-- Whether an agent may begin something in a conversation: nobody has begun it, or the agent was given a task or a
-- message in it or has given a task itself. nil: one of the system's own, which may.
local function takes_part(key, agent)
  if not agent then return true end
  local known = redis.call('HMGET', key, 'begun', 'root', 'agent:' .. agent, 'party:' .. agent)
  return not (known[1] or known[2]) or known[3] or known[4]
end
