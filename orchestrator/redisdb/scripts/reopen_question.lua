-- reopen_question: a question waits in the queue of the session that was asked, and its asker does not know of it: it
-- waits for the reply again, unless it has had it.
-- KEYS  1 session
-- ARGV  1 request: question and reply: their ids; asker: the session that waits
-- Returns  {'open'} | {'closed'}
-- include: base
-- include: request
local ITEMS, ASKER = KEYS[1] .. ':items', session_key(q.asker)
local record, asker = item(ITEMS, q.question), fields(ASKER, 'id', 'state')
local had = redis.call('HEXISTS', ASKER .. ':items', q.reply) == 1 or redis.call('HEXISTS', ASKER, 'question:' .. q.question) == 1
if had or not record or record.state ~= 'queued' or asker.id == '' or CLOSED[asker.state] then return { 'closed' } end
redis.call('HSET', ASKER, 'question:' .. q.question, redis.call('HGET', KEYS[1], 'id'))
redis.call('HINCRBY', ASKER, 'questions', 1)
return { 'open' }
