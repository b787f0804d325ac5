-- withdraw: a question is not to be answered any more: its asker stops waiting, or somebody else has replied.
-- It is closed if it is still open, and leaves the queue of who was asked if it is still there.
-- KEYS  1 session@asker  2 session  3 items  4 queue  5 waiting  6 run|session@asker
-- ARGV  1 question id  2 reason  3 claim of the asker's run, or '': the caller may do it
-- Returns  {'open' | 'closed', '1' if it was still in the queue}: what the question was before | {'lost'}
-- include: base
if ARGV[3] ~= '' and not held_run(KEYS[6], ARGV[3]) then return { 'lost' } end
local record = item(KEYS[3], ARGV[1])
local open = redis.call('HDEL', KEYS[1], 'question:' .. ARGV[1]) == 1
if open then redis.call('HINCRBY', KEYS[1], 'questions', -1) end
if open and is_approval(ARGV[1]) then close_approval(KEYS[3], ARGV[1], ARGV[2]) end
local queued = record ~= nil and record.state == 'queued'
if queued or (record and record.state == 'asked') then mark_dead(KEYS[3], ARGV[1], record, ARGV[2]) end
if queued then
  redis.call('ZREM', KEYS[4], ARGV[1])
  if redis.call('ZCARD', KEYS[4]) == 0 then
    redis.call('ZREM', KEYS[5], redis.call('HGET', KEYS[2], 'id'))
  end
end
return { open and 'open' or 'closed', queued and '1' or '0' }
