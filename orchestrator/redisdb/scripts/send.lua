-- send: an agent's effect that puts something into another session's queue (its parent's, or that of who
-- asked): checked against the claim, once for its effect key.
-- KEYS  1 session  2 items  3 bodies  4 queue  5 waiting  6 session_events  7 totals  8 stream
--       9 session@speaker  10 run  11 effects  12 large_text@speaker|session@speaker  13 large_texts@speaker
--       14 timers  15 conversation
-- ARGV  1 now or ''  2 item id  3 record as JSON  4 text  5 envelope or ''  6 '1': it opens a question of the speaker
--       7 id of the question it answers or ''  8 claim  9 effect key
--       10 ms that a question may stay open, 0: as long as it takes
--       11 most messages of the conversation, or 0 for any number
--       12 digest of a message that the speaker's result may repeat, or ''
-- Returns  {'queued', item id} | {'exists', item id} | {'closed', state} | {'unknown'} | {'lost'} | {'answered'}
--          | {'person'}: it answers an approval, which only a person does
--          | {'whole'}: the text that the record refers to is gone, store it again
--          | {'limit', name, limit}: its conversation has had more messages than it may; a reply is never refused
-- include: base
-- include: effects
-- include: place
local now = clock(ARGV[1])
local said = earlier(KEYS[10], KEYS[11], ARGV[8], ARGV[9])
if said then return said end
local most = tonumber(ARGV[11])
if most > 0 and ARGV[7] == '' and count(redis.call('HGET', KEYS[15], 'count')) > most then
  return { 'limit', 'conversation_max_messages', ARGV[11] }
end
local record = cjson.decode(ARGV[3])
if record.whole and redis.call('EXISTS', KEYS[12]) == 0 then return { 'whole' } end
check('ZCARD', KEYS[14])
local refused = place(now, ARGV[2], record, ARGV[4], ARGV[6], ARGV[7])
if refused then return refused end
local open_ms = tonumber(ARGV[10])
if ARGV[6] == '1' and open_ms > 0 then redis.call('ZADD', KEYS[14], now + open_ms, 'question|' .. ARGV[2]) end
if record.whole then keep(KEYS[12], KEYS[13], record.whole.sha256) end
record_effect(KEYS[11], ARGV[9], { item = ARGV[2], asks = ARGV[6] == '1', claim = ARGV[8] })
publish(KEYS[8], KEYS[7], ARGV[5])
if ARGV[12] ~= '' then redis.call('HSET', KEYS[9], 'said:' .. ARGV[12], ARGV[2]) end
return { 'queued', ARGV[2] }
