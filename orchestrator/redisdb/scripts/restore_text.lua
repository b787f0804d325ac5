-- restore_text: what a child said at the end that its parent was told of is gone, and the caller has found elsewhere what is
-- proven to be it: it is kept again, unless something is there. A deleted session keeps no texts: nobody lost them.
-- KEYS  1 session
-- ARGV  1 request  2 text
-- Returns  {'restored'} | {'nothing'}
-- include: base
-- include: request
-- include: ends
local s = fields(KEYS[1], 'id', 'state', 'parent_notified')
local lost = s.parent_notified == '1' and s.state ~= 'deleted'
return { lost and redis.call('HSETNX', KEYS[1] .. ':bodies', callback_of(s), ARGV[2]) == 1 and 'restored' or 'nothing' }
