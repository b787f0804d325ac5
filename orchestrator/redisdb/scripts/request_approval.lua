-- request_approval: an agent's effect that asks a person: a question of its session that only a person answers, kept in the
-- session's own records and in the index of open approvals; checked against the claim, once for its effect key.
-- KEYS  1 session  2 items  3 bodies  4 run  5 effects  6 timers  7 approvals  8 totals  9 stream
-- ARGV  1 now or ''  2 approval id  3 record as JSON  4 text  5 envelope  6 claim  7 effect key
--       8 when it is decided by default, in ms since the epoch; 0: never
--       9 most questions that the session may have open
-- Returns  {'asked', approval id} | {'exists', approval id} | {'lost'} | {'limit', name, limit}
-- include: base
-- include: effects
-- include: notices
-- include: place
local now = clock(ARGV[1])
local said = earlier(KEYS[4], KEYS[5], ARGV[6], ARGV[7])
if said then return said end
local limit = limit_of_open(KEYS[1], ARGV[9])
if limit then return limit end
check('ZCARD', KEYS[6], KEYS[7])
check('HLEN', KEYS[3], KEYS[8])
check('XLEN', KEYS[9])
local record, session = cjson.decode(ARGV[3]), redis.call('HGET', KEYS[1], 'id')
-- It is in a person's hands from now on, and waits in no queue.
record.state = 'delivered'
record.run = redis.call('HGET', KEYS[4], 'id')
add_item(KEYS[1], KEYS[2], KEYS[3], now, ARGV[2], record, ARGV[4])
open_question(KEYS[1], ARGV[2], session)
redis.call('HSET', KEYS[1], 'updated_ms', now)
redis.call('ZADD', KEYS[7], now, ARGV[2])
if tonumber(ARGV[8]) > 0 then redis.call('ZADD', KEYS[6], ARGV[8], 'approval|' .. ARGV[2]) end
record_effect(KEYS[5], ARGV[7], { item = ARGV[2], asks = true, claim = ARGV[6] })
publish(KEYS[9], KEYS[8], ARGV[5], 'already_applied', '1')
notice(KEYS[1], 'approval', session, ARGV[2], '')
return { 'asked', ARGV[2] }
