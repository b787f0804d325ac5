-- due_timers: the timers that are due, first those that no clock could have set so far ahead. They stay until the caller
-- has acted on them: a crash loses none.
-- KEYS  1 timers
-- ARGV  1 now or ''  2 how many  3 ms that a timer may lie ahead at most, or ''
-- Returns  {timer, …}
-- include: base
local now = clock(ARGV[1])
if ARGV[3] ~= '' then
  local ahead = redis.call('ZRANGEBYSCORE', KEYS[1], '(' .. now + tonumber(ARGV[3]), '+inf', 'LIMIT', 0, ARGV[2])
  if #ahead > 0 then return ahead end
end
return redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', now, 'LIMIT', 0, ARGV[2])
