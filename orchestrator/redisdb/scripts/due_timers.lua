-- due_timers: the timers that are due, first those that no clock could have set so far ahead. They stay until the caller
-- has acted on them: a crash loses none.
-- KEYS  1 timers
-- ARGV  1 now or ''  2 how many  3 ms that a timer may lie ahead at most
-- Returns  {timer, …}
-- include: base
local now = clock(ARGV[1])
local ahead = redis.call('ZRANGEBYSCORE', KEYS[1], '(' .. now + tonumber(ARGV[3]), '+inf', 'LIMIT', 0, ARGV[2])
if #ahead > 0 then return ahead end
return redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', now, 'LIMIT', 0, ARGV[2])
