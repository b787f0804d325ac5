-- What the last runs of a session found when they began, so that it can be forked there: a hash beside the session.
--   state:<number>   the saved state that the run of this number replaced at its commit; '' if there was none
--   memory:<number>  the reference to the memory likewise
--   from             the number of the first run that still has what it found
-- What a run found is what the first run from it on replaced, or else what is there now.

-- The commit of a run is about to replace the session's `what`: state or memory.
local function note_past(session, what, number)
  redis.call('HSET', session .. ':past', what .. ':' .. number, redis.call('HGET', session .. ':bodies', what) or '')
end

local function sha256_of(reference)
  local fine, value = pcall(cjson.decode, reference or '')
  return fine and type(value) == 'table' and value.sha256 or ''
end

-- Only as many runs as `keep`, the last of which is `number`, have what they found. Memories that none of them found go,
-- unless the session has such a one again.
local function forget_past(session, large_texts, number, keep)
  local past, from = session .. ':past', number - keep + 1
  if from <= math.max(1, count(redis.call('HGET', past, 'from'))) then return end
  redis.call('HSET', past, 'from', from)
  local gone, kept = {}, { [sha256_of(redis.call('HGET', session .. ':bodies', 'memory'))] = true }
  for name, reference in pairs(object(past)) do
    local what, at = string.match(name, '^(%l+):(%d+)$')
    if at and tonumber(at) < from then
      redis.call('HDEL', past, name)
      if what == 'memory' then gone[#gone + 1] = sha256_of(reference) end
    elseif what == 'memory' then
      kept[sha256_of(reference)] = true
    end
  end
  for _, sha256 in ipairs(gone) do
    if sha256 ~= '' and not kept[sha256] then
      redis.call('UNLINK', session .. ':whole:' .. sha256)
      redis.call('SREM', large_texts, sha256)
    end
  end
end
