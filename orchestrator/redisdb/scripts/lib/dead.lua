-- Shared by all scripts that add or remove dead letters: an index of them by sender, and what each sender takes.
-- A sender whose signature did not count is '': all of those are one. The index holds `sender\0id\0bytes`, by
-- sender and age; the usage `bytes`, `bytes:<sender>`, how many were `dropped`, `dropped-ms` when, how many of those
-- and of those that people took out were `unaudited`, and `unaudited-ms` when the last of them went.

local function dead_member(sender, id, bytes)
  local ms, seq = string.match(id, '^(%d+)-(%d+)$')
  return sender .. '\0' .. string.format('%020.0f-%020.0f', tonumber(ms), tonumber(seq)) .. '\0' .. bytes
end

-- The member of an entry of the stream, by its fields.
local function dead_member_of(entry)
  local fact = by_name(entry[2])
  return dead_member(fact['verified'] == '1' and fact['sender'] or '', entry[1], #(fact['envelope'] or ''))
end

local function dead_count(index, sender) return redis.call('ZLEXCOUNT', index, '[' .. sender .. '\0', '(' .. sender .. '\1') end

local function dead_oldest(index, sender)
  return redis.call('ZRANGEBYLEX', index, '[' .. sender .. '\0', '(' .. sender .. '\1', 'LIMIT', 0, 1)[1]
end

local function dead_enter(index, usage, member)
  if redis.call('EXISTS', index) == 0 then
    -- Somebody removed the index: what it counted is not there any more.
    for _, field in ipairs(redis.call('HKEYS', usage)) do
      if string.find(field, '^bytes') then redis.call('HDEL', usage, field) end
    end
  end
  local sender, bytes = string.match(member, '^(.-)%z.-%z(%d+)$')
  redis.call('ZADD', index, 0, member)
  redis.call('HINCRBY', usage, 'bytes', bytes)
  redis.call('HINCRBY', usage, 'bytes:' .. sender, bytes)
end

-- Take one out of the records; nothing if it is not in them.
local function dead_forget(index, usage, member)
  if redis.call('ZREM', index, member) == 0 then return end
  local sender, bytes = string.match(member, '^(.-)%z.-%z(%d+)$')
  for _, name in ipairs({ 'bytes', 'bytes:' .. sender }) do
    if redis.call('HINCRBY', usage, name, -tonumber(bytes)) <= 0 then redis.call('HDEL', usage, name) end
  end
end

-- The last dead letter that the audit writer's group has had, padded as in the index; nil: there is no such group.
local function dead_audited(dead)
  if redis.call('EXISTS', dead) == 0 then return nil end
  for _, row in ipairs(redis.call('XINFO', 'GROUPS', dead)) do
    local fact = by_name(row)
    if fact['name'] == 'audit' then
      local ms, seq = string.match(fact['last-delivered-id'], '^(%d+)-(%d+)$')
      return string.format('%020.0f-%020.0f', tonumber(ms), tonumber(seq))
    end
  end
end

-- So many dead letters went that the audit writer has not read, and will not.
local function dead_unaudited(usage, number, now)
  redis.call('HINCRBY', usage, 'unaudited', number)
  redis.call('HSET', usage, 'unaudited-ms', string.format('%.0f', now))
end

-- Drop dead letters until they keep to the limits; how many. `sender` is who got one last.
-- limits: entries, bytes, entries and bytes of one sender, time in ms before which a dead letter is too old.
local function dead_make_room(dead, index, usage, sender, limits, now)
  local entries, bytes, own_entries, own_bytes, before = unpack(limits)
  local dropped, unaudited, audited = 0, 0, nil
  local function used(field) return tonumber(redis.call('HGET', usage, field) or '0') end
  local function drop(member)
    local padded = string.match(member, '^.-%z(.-)%z')
    local ms, seq = string.match(padded, '^(%d+)-(%d+)$')
    dead_forget(index, usage, member)
    if redis.call('XDEL', dead, string.format('%.0f-%.0f', tonumber(ms), tonumber(seq))) == 1 then
      dropped = dropped + 1
      audited = audited or dead_audited(dead) or '~'
      if padded > audited then unaudited = unaudited + 1 end
    end
  end
  -- Some at a time: those that are left go with the next call.
  for _, entry in ipairs(redis.call('XRANGE', dead, '-', string.format('(%.0f-0', before), 'COUNT', 100)) do
    drop(dead_member_of(entry))
  end
  while sender and (dead_count(index, sender) > own_entries or used('bytes:' .. sender) > own_bytes) do
    local member = dead_oldest(index, sender)
    if not member then break end
    drop(member)
  end
  while redis.call('ZCARD', index) > entries or used('bytes') > bytes do
    local member = dead_oldest(index, '')
    if not member then
      local first = redis.call('XRANGE', dead, '-', '+', 'COUNT', 1)[1]
      -- Somebody took dead letters out by hand: what the index still holds is not there.
      member = first and dead_member_of(first) or redis.call('ZRANGE', index, 0, 0)[1]
    end
    if not member then break end
    drop(member)
  end
  if dropped > 0 then
    redis.call('HINCRBY', usage, 'dropped', dropped)
    redis.call('HSET', usage, 'dropped-ms', string.format('%.0f', now))
  end
  if unaudited > 0 then dead_unaudited(usage, unaudited, now) end
  return dropped
end
