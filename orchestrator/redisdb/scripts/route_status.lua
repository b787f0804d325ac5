-- route_status: a program outside of the stack says how far the session it runs is.
-- KEYS  1 session
-- ARGV  1 request: mark (see lib/mark.lua)  2… field, value, …
-- Returns  {'done'} | {'duplicate'} | {'other'}: its id is another message's | {'unknown'}; on the last two nothing
--          was acknowledged
-- Complexity: O(1).
-- include: base
-- include: mark
local now = clock(q.now)
local answer, applied = answered(q.mark)
if answer then return answer end
local s = fields(KEYS[1], 'id', 'state')
if s.id == '' then return { 'unknown' } end
if not applied and not CLOSED[s.state] then redis.call('HSET', KEYS[1], 'updated_ms', now, unpack(ARGV, 2)) end
accept(q.mark)
return { 'done' }
