-- route_put: what a program outside of the stack says to a session goes into that session's queue: a question,
-- a reply, a message. One step with the mark and the acknowledgement.
-- KEYS  1 session  2 items  3 bodies  4 queue  5 waiting  6 stops  7 totals  8 stream  9 speaking session, or KEYS[1]
--       10 seen mark  11 stream of the entry  12 conversation
-- ARGV  1 now or ''  2 item id  3 record as JSON  4 text  5 '1': it opens a question of KEYS[9]
--       6 id of the question it answers or ''  7 group  8 entry id  9 mark's lifetime in ms
--       10 digest  11 lifetime of a conversation in ms
--       12… field, value, … of KEYS[9]: how far the speaking session is
-- Returns  {'done'} | {'duplicate'} | {'other'}: its id is another message's | {'unknown'} | {'closed', state}
--          | {'answered'} | {'person'}: it answers an approval, which only a person does; on the last five nothing was acknowledged
-- Complexity: O(log(queue)).
-- include: base
-- include: mark
-- include: place
local now = clock(ARGV[1])
local answer = answered(KEYS[10], KEYS[11], ARGV[7], ARGV[8], ARGV[10])
if answer then return answer end
if redis.call('HEXISTS', KEYS[2], ARGV[2]) == 0 then
  local refused = place(now, ARGV[2], cjson.decode(ARGV[3]), ARGV[4], ARGV[5], ARGV[6])
  if refused then return refused end
  if #ARGV > 11 then redis.call('HSET', KEYS[9], 'updated_ms', now, unpack(ARGV, 12)) end
end
redis.call('PEXPIRE', KEYS[12], ARGV[11])
accept(KEYS[10], KEYS[11], ARGV[7], ARGV[8], ARGV[10], ARGV[9])
return { 'done' }
