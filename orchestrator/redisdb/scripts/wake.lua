-- wake: whether workers are to be told that an agent has ready runs that may be taken; what a lost message told them is told again.
-- KEYS  1 ready  2 turns
-- ARGV  1 now or ''
-- Returns  '1' | '0'
-- include: base
-- include: ready
if redis.call('EXISTS', KEYS[1]) == 0 then return '0' end
return must_wake(KEYS[1], KEYS[2], clock(ARGV[1]))
