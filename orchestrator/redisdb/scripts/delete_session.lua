-- delete_session: remove a session of an expired tree with all its keys; the root goes last.
-- KEYS  1 session
-- ARGV  1 request: root; runs: their ids  2… keys of its runs, and of its large texts, which the caller looked up
-- Returns  {'pruned', sessions left in the tree}
-- include: base
-- include: request
-- include: ready
-- include: steps
local id, root, TREE = session_of(KEYS[1]), q.root, in_shard('tree:' .. q.root)
local agent, TIMERS = redis.call('HGET', KEYS[1], 'agent') or '', in_shard('timers')
local READY, TURNS = in_shard('ready:' .. agent), in_shard('turns:' .. agent)
for _, run in ipairs(q.runs or {}) do
  drop_steps(in_shard('run:' .. run))
  redis.call('ZREM', in_shard('running'), run)
  redis.call('ZREM', in_shard('queued'), run)
  leave_ready(READY, TURNS, run, root)
end
for i = 2, #ARGV do redis.call('DEL', ARGV[i]) end
close_approvals(KEYS[1], KEYS[1] .. ':items')
for _, what in ipairs({ '', ':items', ':bodies', ':queue', ':runs' }) do redis.call('DEL', KEYS[1] .. what) end
if redis.call('ZREM', TREE, id) == 1 then changed('session', id, '-', 'removed') end
redis.call('ZREM', in_shard('closing'), id)
redis.call('ZREM', in_shard('waiting'), id)
if id == root then
  redis.call('ZREM', in_shard('roots'), id)
  redis.call('ZREM', TIMERS, 'expire|' .. id)
  redis.call('DEL', beside(KEYS[1], 'blocked:' .. root))
  redis.call('SREM', beside(KEYS[1], 'blocked'), root)
  redis.pcall('HDEL', beside(KEYS[1], 'limits'), 'tree:' .. root)
  redis.pcall('HDEL', beside(KEYS[1], 'limits-said'), 'tree:' .. root)
end
return { 'pruned', tostring(redis.call('ZCARD', TREE)) }
