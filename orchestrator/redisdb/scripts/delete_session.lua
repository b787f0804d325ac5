-- delete_session: remove a session of an expired tree with all its keys; the root goes last.
-- KEYS  1 session  2 items  3 bodies  4 queue  5 runs  6 tree  7 roots  8 timers  9 closing  10 waiting
--       11 running  12 queued  13 ready  14 turns
--       15… keys of its runs, and of its large texts, which the caller looked up
-- ARGV  1 session id  2 root id  3… ids of its runs
-- Returns  {'pruned', sessions left in the tree}
-- include: base
-- include: ready
for i = 15, #KEYS do redis.call('DEL', KEYS[i]) end
for i = 3, #ARGV do
  redis.call('ZREM', KEYS[11], ARGV[i])
  redis.call('ZREM', KEYS[12], ARGV[i])
  leave_ready(KEYS[13], KEYS[14], ARGV[i], ARGV[2])
end
close_approvals(KEYS[1], KEYS[2])
redis.call('DEL', KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5])
if redis.call('ZREM', KEYS[6], ARGV[1]) == 1 then changed('session', ARGV[1], '-', 'removed') end
redis.call('ZREM', KEYS[9], ARGV[1])
redis.call('ZREM', KEYS[10], ARGV[1])
if ARGV[1] == ARGV[2] then
  redis.call('ZREM', KEYS[7], ARGV[1])
  redis.call('ZREM', KEYS[8], 'expire|' .. ARGV[1])
  redis.call('DEL', beside(KEYS[1], 'blocked:' .. ARGV[2]))
  redis.call('SREM', beside(KEYS[1], 'blocked'), ARGV[2])
  redis.pcall('HDEL', beside(KEYS[1], 'limits'), 'tree:' .. ARGV[2])
  redis.pcall('HDEL', beside(KEYS[1], 'limits-said'), 'tree:' .. ARGV[2])
end
return { 'pruned', tostring(redis.call('ZCARD', KEYS[6])) }
