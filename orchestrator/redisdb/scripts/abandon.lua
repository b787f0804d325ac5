-- abandon: a closed parent lets go of one callback that is still owed: it is dead, with the reason.
-- KEYS  1 session
-- ARGV  1 request: callback: its id; reason
-- Returns  {'dead'} | {'not owed', state}
-- include: base
-- include: request
-- include: notices
local ITEMS = KEYS[1] .. ':items'
local record = item(ITEMS, q.callback)
if not record then return { 'not owed', 'unknown' } end
if record.state ~= 'owed' then return { 'not owed', record.state } end
mark_dead(ITEMS, q.callback, record, q.reason or '')
redis.call('HINCRBY', KEYS[1], 'dead', 1)
count_callbacks(KEYS[1], record.group, 'owed', -1)
notice(KEYS[1], 'dead', redis.call('HGET', KEYS[1], 'id') or '', '1', q.reason or '')
return { 'dead' }
