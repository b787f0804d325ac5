-- reopen_question: a question waits in the queue of the session that was asked, and its asker does not know of it: it
-- waits for the reply again, unless it has had it.
-- KEYS  1 session@asker  2 items@asker  3 session  4 items
-- ARGV  1 question id  2 id of its reply
-- Returns  {'open'} | {'closed'}
-- include: base
local record, asker = item(KEYS[4], ARGV[1]), fields(KEYS[1], 'id', 'state')
local had = redis.call('HEXISTS', KEYS[2], ARGV[2]) == 1 or redis.call('HEXISTS', KEYS[1], 'question:' .. ARGV[1]) == 1
if had or not record or record.state ~= 'queued' or asker.id == '' or CLOSED[asker.state] then return { 'closed' } end
redis.call('HSET', KEYS[1], 'question:' .. ARGV[1], redis.call('HGET', KEYS[3], 'id'))
redis.call('HINCRBY', KEYS[1], 'questions', 1)
return { 'open' }
