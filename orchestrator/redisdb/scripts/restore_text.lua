-- restore_text: what a child said at its end is kept by itself and by its parent; the one that is gone is copied
-- from the other. Only while both are of the same end: a user may have resumed the child since.
-- KEYS  1 session
-- ARGV  1 request: callback: its id; parent
-- Returns  {'restored', 'result' | 'callback'} | {'nothing'}: none is
--          gone, or it cannot be known any more
-- Complexity: O(size of the text).
-- include: base
-- include: request
local BODIES, P_ITEMS, P_BODIES = KEYS[1] .. ':bodies', session_key(q.parent) .. ':items', session_key(q.parent) .. ':bodies'
local s = fields(KEYS[1], 'state', 'ended_ms')
local record = item(P_ITEMS, q.callback)
if not record or record.kind ~= 'completion' or record.state == 'owed' or record.state == 'none' then
  return { 'nothing' }
end
-- A deleted session keeps no texts: nobody lost them.
if s.state == 'deleted' or count(s.ended_ms) == 0 or count(s.ended_ms) ~= record.at_ms then return { 'nothing' } end
local own = redis.call('HMGET', BODIES, 'result', 'whole')
local theirs = redis.call('HGET', P_BODIES, q.callback)
if not own[1] and theirs then
  if record.whole and redis.call('EXISTS', KEYS[1] .. ':whole:' .. record.whole.sha256) == 0 then return { 'nothing' } end
  redis.call('HSET', BODIES, 'result', theirs)
  if record.whole then redis.call('HSET', BODIES, 'whole', cjson.encode(record.whole)) end
  return { 'restored', 'result' }
end
if own[1] and not theirs and (record.state == 'queued' or record.state == 'claimed') then
  redis.call('HSET', P_BODIES, q.callback, own[1])
  return { 'restored', 'callback' }
end
return { 'nothing' }
