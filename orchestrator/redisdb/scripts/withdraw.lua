-- withdraw: a question is not to be answered any more: its asker stops waiting, or somebody else has replied.
-- It is closed if it is still open, and leaves the queue of who was asked if it is still there.
-- KEYS  1 session@asker  2 session  3 items  4 queue  5 waiting  6 run|session@asker
-- ARGV  1 question id  2 reason  3 claim of the asker's run, or '': whoever calls may do so
-- Returns  {'open' | 'closed', '1' if it was still in the queue}: what the question was before | {'lost'}
-- include: base
if ARGV[3] ~= '' then
  local r = fields(KEYS[6], 'state', 'claim')
  if r.state ~= 'running' or r.claim ~= ARGV[3] then return { 'lost' } end
end
local record = item(KEYS[3], ARGV[1])
local open = redis.call('HDEL', KEYS[1], 'question:' .. ARGV[1]) == 1
if open then redis.call('HINCRBY', KEYS[1], 'questions', -1) end
if open and is_approval(ARGV[1]) then close_approval(KEYS[3], ARGV[1], ARGV[2]) end
local queued = record ~= nil and record.state == 'queued'
if record ~= nil and record.state == 'asked' then
  record.state = 'dead'
  record.reason = ARGV[2]
  save(KEYS[3], ARGV[1], record)
end
if queued then
  record.state = 'dead'
  record.reason = ARGV[2]
  save(KEYS[3], ARGV[1], record)
  redis.call('ZREM', KEYS[4], ARGV[1])
  if redis.call('ZCARD', KEYS[4]) == 0 then
    redis.call('ZREM', KEYS[5], redis.call('HGET', KEYS[2], 'id'))
  end
end
return { open and 'open' or 'closed', queued and '1' or '0' }
