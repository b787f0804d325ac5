-- restore_text: what a child said at its end is kept by itself and by its parent; the one that is gone is copied
-- from the other. Only while both are of the same end: a user may have resumed the child since.
-- KEYS  1 session  2 bodies  3 items@parent  4 bodies@parent  5 large_text|session
-- ARGV  1 callback id  2 digest of the large text that came as KEYS[5], or ''
-- Returns  {'restored', 'result' | 'callback'} | {'whole', digest}: pass the key of that text | {'nothing'}: none is
--          gone, or it cannot be known any more
-- Complexity: O(size of the text).
-- include: base
local s = fields(KEYS[1], 'state', 'ended_ms')
local record = item(KEYS[3], ARGV[1])
if not record or record.kind ~= 'completion' or record.state == 'owed' or record.state == 'none' then
  return { 'nothing' }
end
-- A deleted session keeps no texts: nobody lost them.
if s.state == 'deleted' or count(s.ended_ms) == 0 or count(s.ended_ms) ~= record.at_ms then return { 'nothing' } end
local own = redis.call('HMGET', KEYS[2], 'result', 'whole')
local theirs = redis.call('HGET', KEYS[4], ARGV[1])
if not own[1] and theirs then
  local digest = record.whole and record.whole.sha256 or ''
  if digest ~= ARGV[2] then return { 'whole', digest } end
  if record.whole and redis.call('EXISTS', KEYS[5]) == 0 then return { 'nothing' } end
  redis.call('HSET', KEYS[2], 'result', theirs)
  if record.whole then redis.call('HSET', KEYS[2], 'whole', cjson.encode(record.whole)) end
  return { 'restored', 'result' }
end
if own[1] and not theirs and (record.state == 'queued' or record.state == 'claimed') then
  redis.call('HSET', KEYS[4], ARGV[1], own[1])
  return { 'restored', 'callback' }
end
return { 'nothing' }
