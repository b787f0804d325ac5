-- inherit: a closed parent hands a callback that is still owed to its heir: dead here, with that reason, and
-- launched and owed there under the same id. Not to the child itself or to what is below it, which would wait for
-- its own end for ever.
-- KEYS  1 session  2 items  3 session@heir  4 items@heir  5 session@child
--       6… the sessions above the heir, nearest first, as the caller found them; the last is a root or is gone
-- ARGV  1 callback id  2 heir id  3 reason
-- Returns  {'handed'} | {'not owed', state} | {'no heir', state} | {'kin'}: the child is the heir or above it
--          | {'moved'}: the sessions above the heir are others by now, look again
-- include: base
local record = item(KEYS[2], ARGV[1])
if not record then return { 'not owed', 'unknown' } end
if record.state ~= 'owed' then return { 'not owed', record.state } end
local heir = fields(KEYS[3], 'id', 'agent', 'state')
if heir.id == '' or CLOSED[heir.state] then return { 'no heir', heir.state } end
if heir.id == record.child then return { 'kin' } end
local above = redis.call('HGET', KEYS[3], 'parent')
for i = 6, #KEYS do
  local member = fields(KEYS[i], 'id', 'parent')
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
save(KEYS[4], ARGV[1], record)
item_changed(KEYS[4], ARGV[1], record)
record.inherited = nil
count_callbacks(KEYS[3], record.group, 'launched', 1)
count_callbacks(KEYS[3], record.group, 'owed', 1)
redis.call('HSET', KEYS[5], 'parent', ARGV[2], 'delegator', heir.agent)
redis.call('HINCRBY', KEYS[1], 'dead', 1)
count_callbacks(KEYS[1], record.group, 'owed', -1)
mark_dead(KEYS[2], ARGV[1], record, ARGV[3])
return { 'handed' }
