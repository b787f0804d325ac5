-- put: place something into a session's queue from outside any run: a user's prompt or reply, a foreign
-- program's message. Idempotent by item id.
-- KEYS  1 session  2 items  3 bodies  4 queue  5 waiting  6 stops  7 totals  8 stream
--       9 speaking session, or the session itself
-- ARGV  1 now or ''  2 item id  3 record as JSON  4 text  5 envelope or ''  6 '1': it opens a question of KEYS[9]
--       7 id of the question it answers or ''
-- Returns  {'queued', seq} | {'exists'} | {'closed', state} | {'unknown'} | {'answered'}: it has its reply already
-- include: base
-- include: place
local now = clock(ARGV[1])
if redis.call('HEXISTS', KEYS[2], ARGV[2]) == 1 then return { 'exists' } end
local refused, seq = place(now, ARGV[2], cjson.decode(ARGV[3]), ARGV[4], ARGV[6], ARGV[7])
if refused then return refused end
publish(KEYS[8], KEYS[7], ARGV[5])
return { 'queued', tostring(seq) }
