-- abandon: a closed parent lets go of one callback that is still owed: it is dead, with the reason.
-- KEYS  1 session  2 items
-- ARGV  1 callback id  2 reason
-- Returns  {'dead'} | {'not owed', state}
-- include: base
-- include: notices
local record = item(KEYS[2], ARGV[1])
if not record then return { 'not owed', 'unknown' } end
if record.state ~= 'owed' then return { 'not owed', record.state } end
mark_dead(KEYS[2], ARGV[1], record, ARGV[2])
redis.call('HINCRBY', KEYS[1], 'dead', 1)
count_callbacks(KEYS[1], record.group, 'owed', -1)
notice(KEYS[1], 'dead', redis.call('HGET', KEYS[1], 'id') or '', '1', ARGV[2])
return { 'dead' }
