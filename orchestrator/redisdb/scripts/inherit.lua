-- inherit: a closed parent hands a callback that is still owed to its heir: dead here, with that reason, and launched and owed
-- there under the same id. Not to the child itself or to what is below it, which would wait for its own end for ever.
-- KEYS  1 session
-- ARGV  1 request: callback: its id; heir; child; reason; above: the sessions above the heir, nearest first, as the caller found
--         them; the last is a root or is gone
-- Returns  {'handed'} | {'not owed', state} | {'no heir', state} | {'kin'}: the child is the heir or above it
--          | {'moved'}: the sessions above the heir are others by now, look again
-- include: base
-- include: request
local ITEMS, HEIR, CHILD = KEYS[1] .. ':items', session_key(q.heir), session_key(q.child)
local HEIR_ITEMS = HEIR .. ':items'
local record = item(ITEMS, q.callback)
if not record then return { 'not owed', 'unknown' } end
if record.state ~= 'owed' then return { 'not owed', record.state } end
local heir = fields(HEIR, 'id', 'agent', 'state')
if heir.id == '' or CLOSED[heir.state] then return { 'no heir', heir.state } end
if heir.id == record.child then return { 'kin' } end
local above = redis.call('HGET', HEIR, 'parent')
for _, one in ipairs(q.above or {}) do
  local member = fields(session_key(one), 'id', 'parent')
  if member.id == record.child then return { 'kin' } end
  if member.id ~= above then
    if member.id ~= '' then return { 'moved' } end
    above = ''
    break
  end
  above = member.parent
end
if above ~= '' then return { 'moved' } end
record.inherited = true
save(HEIR_ITEMS, q.callback, record)
item_changed(HEIR_ITEMS, q.callback, record)
record.inherited = nil
count_callbacks(HEIR, record.group, 'launched', 1)
count_callbacks(HEIR, record.group, 'owed', 1)
redis.call('HSET', CHILD, 'parent', q.heir, 'delegator', heir.agent)
redis.call('HINCRBY', KEYS[1], 'dead', 1)
count_callbacks(KEYS[1], record.group, 'owed', -1)
mark_dead(ITEMS, q.callback, record, q.reason)
return { 'handed' }
