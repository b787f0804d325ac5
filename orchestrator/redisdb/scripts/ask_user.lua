-- ask_user: a running root asks the user. The question is in its own records, in no queue, and open until it has its
-- reply; once for its effect key.
-- KEYS  1 session  2 items  3 bodies  4 run  5 effects  6 totals  7 stream  8 timers  9 conversation
-- ARGV  1 now or ''  2 question id  3 record as JSON  4 text  5 envelope or ''  6 claim  7 effect key
--       8 ms that it may stay open, 0: as long as it takes  9 most messages of the conversation, or 0 for any number
--       10 most questions that the session may have open
-- Returns  {'asked', question id} | {'exists', question id} | {'lost'} | {'limit', name, limit}
-- include: base
-- include: effects
-- include: notices
-- include: place
local now = clock(ARGV[1])
local said = earlier(KEYS[4], KEYS[5], ARGV[6], ARGV[7])
if said then return said end
local limit = limit_of_open(KEYS[1], ARGV[10])
if limit then return limit end
local most = tonumber(ARGV[9])
if most > 0 and count(redis.call('HGET', KEYS[9], 'count')) > most then
  return { 'limit', 'conversation_max_messages', ARGV[9] }
end
check('ZCARD', KEYS[8])
check('HLEN', KEYS[3], KEYS[6])
check('XLEN', KEYS[7])
local s = fields(KEYS[1], 'id')
local record = cjson.decode(ARGV[3])
record.state = 'asked'
add_item(KEYS[1], KEYS[2], KEYS[3], now, ARGV[2], record, ARGV[4])
open_question(KEYS[1], ARGV[2], s.id)
redis.call('HSET', KEYS[1], 'updated_ms', now)
local open_ms = tonumber(ARGV[8])
if open_ms > 0 then redis.call('ZADD', KEYS[8], now + open_ms, 'question|' .. ARGV[2]) end
record_effect(KEYS[5], ARGV[7], { item = ARGV[2], asks = true, claim = ARGV[6] })
publish(KEYS[7], KEYS[6], ARGV[5], 'already_applied', '1')
notice(KEYS[1], 'question', s.id, ARGV[2], '')
return { 'asked', ARGV[2] }
