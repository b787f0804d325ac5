-- close_tree: the sessions of a tree that is about to be removed are closed, all at once, unless one of them was used
-- since the caller looked: nothing can be said to them from now on, and no run of theirs can be claimed.
-- What was closed so stays closed, so that a removal that was cut short is gone through with by the next sweep.
-- KEYS  session and queue of each
-- ARGV  1 the reason for those that come too late  2… of each: its state, run, runs, owed and children as they were
--       looked at, with a space between; then whether its queue counts, '1', or is removed with it, ''
-- Returns  {'retired'} | {'in use', key of the session that is}
-- Complexity: O(sessions of the tree).
-- include: base
for i = 1, #KEYS, 2 do
  local s = fields(KEYS[i], 'state', 'run', 'runs', 'owed', 'children')
  local found = table.concat({ s.state, s.run, count(s.runs), count(s.owed), count(s.children) }, ' ')
  local waits = ARGV[i + 2] == '1' and redis.call('ZCARD', KEYS[i + 1]) > 0
  if found ~= ARGV[i + 1] or waits then return { 'in use', KEYS[i] } end
end
for i = 1, #KEYS, 2 do
  if redis.call('HGET', KEYS[i], 'state') ~= 'deleted' then changed('session', session_of(KEYS[i]), '-', 'deleted') end
  redis.call('HSET', KEYS[i], 'state', 'deleted', 'run', '', 'reason', ARGV[1])
end
return { 'retired' }
