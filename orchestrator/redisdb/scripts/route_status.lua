-- route_status: a program outside of the stack says how far the session it runs is.
-- KEYS  1 session  2 seen mark  3 stream of the entry
-- ARGV  1 now or ''  2 group  3 entry id  4 mark's lifetime in ms  5… field, value, …
-- Returns  {'done'} | {'duplicate'} | {'unknown'}; on the last nothing was acknowledged
-- Complexity: O(1).
-- include: base
local now = clock(ARGV[1])
local mark = redis.call('GET', KEYS[2])
if mark and mark ~= ARGV[3] then
  redis.call('XACK', KEYS[3], ARGV[2], ARGV[3])
  return { 'duplicate' }
end
local s = fields(KEYS[1], 'id', 'state')
if s.id == '' then return { 'unknown' } end
if not CLOSED[s.state] then
  redis.call('HSET', KEYS[1], 'updated_ms', now, unpack(ARGV, 5))
end
redis.call('SET', KEYS[2], ARGV[3], 'PX', ARGV[4])
redis.call('XACK', KEYS[3], ARGV[2], ARGV[3])
return { 'done' }
