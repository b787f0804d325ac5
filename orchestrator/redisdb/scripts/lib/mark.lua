-- include: request
-- Shared by the router's scripts: the marks of messages that were acted upon. A mark's key names the message-id and
-- its sender; it holds `<entry id> <digest of what the sender signed>`, or the entry id alone while the message waits.

-- Further values of a list among others, each of which has its key: what is the same for several messages is written once.
local function add(lists, key, ...)
  lists[key] = lists[key] or {}
  for _, value in ipairs({...}) do table.insert(lists[key], value) end
end

-- How a message stands to the mark at `key`: nil: there is none; 'own', and whether it has had its effect: this very entry
-- set it; 'duplicate': a copy of it did; 'other': its sender has used its message-id for something else.
local function marked(key, entry, digest)
  local mark = redis.call('GET', key)
  if not mark then return nil end
  local by, of = string.match(mark, '^(%S+) ?(%S*)$')
  if by == entry then return 'own', of ~= '' end
  if of == '' or of == digest then return 'duplicate' end
  return 'other'
end

local function mark(key, entry, digest, ttl_ms) redis.call('SET', key, entry .. ' ' .. digest, 'PX', ttl_ms) end

-- A request for one message says of it, as `m`: its mark `seen`, its `stream` and its `conversation`, each a key without
-- the shard; group, entry and digest; how long the mark lives and the conversation is remembered, mark_ms and keep_ms.

local function acknowledge(m) redis.call('XACK', in_shard(m.stream), m.group, m.entry) end

-- What a script answers about a message without doing anything: {'other'}, or {'duplicate'}, which is acknowledged; else
-- nil, and whether this very entry has had its effect: its router did not hear of that, or was overtaken by another.
local function answered(m)
  local standing, applied = marked(in_shard(m.seen), m.entry, m.digest)
  if standing == 'duplicate' then acknowledge(m) end
  if standing == 'duplicate' or standing == 'other' then return { standing } end
  return nil, applied
end

-- The message has its effect: it is marked and acknowledged.
local function accept(m)
  redis.call('PEXPIRE', in_shard(m.conversation), m.keep_ms)
  mark(in_shard(m.seen), m.entry, m.digest, m.mark_ms)
  acknowledge(m)
end
