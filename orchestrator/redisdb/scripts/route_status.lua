-- route_status: a program outside of the stack says how far the session it runs is.
-- KEYS  1 session  2 mark  3 stream  4 conversation
-- ARGV  1 now or ''  2 group  3 entry id  4 mark's lifetime in ms  5 digest  6 lifetime of a conversation in ms
--       7… field, value, …
-- Returns  {'done'} | {'duplicate'} | {'other'}: its id is another message's | {'unknown'}; on the last two nothing
--          was acknowledged
-- Complexity: O(1).
-- include: base
-- include: mark
local now = clock(ARGV[1])
local answer = answered(KEYS[2], KEYS[3], ARGV[2], ARGV[3], ARGV[5])
if answer then return answer end
local s = fields(KEYS[1], 'id', 'state')
if s.id == '' then return { 'unknown' } end
if not CLOSED[s.state] then
  redis.call('HSET', KEYS[1], 'updated_ms', now, unpack(ARGV, 7))
end
redis.call('PEXPIRE', KEYS[4], ARGV[6])
accept(KEYS[2], KEYS[3], ARGV[2], ARGV[3], ARGV[5], ARGV[4])
return { 'done' }
