-- Shared by the router's scripts: what is known of a conversation.

-- Counts a message of a conversation and returns '' or what is wrong with it: 'chain' when its chain does not
-- end at the conversation's first message, 'limit' when the conversation has had as many messages as it may.
-- With `limit` 0 a message neither counts nor is refused.
-- `first` is the last reference of its chain, or its own id when it has none.
local function converse(key, first, limit, ttl_ms)
  local root = redis.call('HGET', key, 'root')
  if not root then
    redis.call('HSET', key, 'root', first)
  elseif root ~= first then
    return 'chain'
  end
  redis.call('PEXPIRE', key, ttl_ms)
  if limit > 0 and redis.call('HINCRBY', key, 'count', 1) > limit then
    return 'limit'
  end
  return ''
end
