-- due: the timers that are due. They stay until whoever acts on them removes them: a crash loses none.
-- KEYS  1 timers
-- ARGV  1 now or ''  2 how many
-- Returns  {timer, …}
-- include: base
return redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', clock(ARGV[1]), 'LIMIT', 0, ARGV[2])
