-- claim_external: the first run of a session whose agent is a program outside of the stack is at work from now on.
-- That program reads the task from the stream; no worker is sent anything, and no lease is kept for it.
-- KEYS  1 session  2 run  3 queued  4 ready  5 turns
-- ARGV  1 now or ''  2 run id  3 agent
-- Returns  1 taken | 0 it is not queued (any more)
-- Complexity: O(log(dispatch)).
-- include: base
-- include: ready
local now = clock(ARGV[1])
if redis.call('HGET', KEYS[2], 'state') ~= 'queued' then return 0 end
redis.call('HSET', KEYS[2], 'state', 'running', 'claim', 'external', 'worker', ARGV[3], 'attempt', 1, 'started_ms', now)
redis.call('ZREM', KEYS[3], ARGV[2])
local s = fields(KEYS[1], 'root', 'version', 'on_deploy')
local ready, turns = in_lane(KEYS[4], KEYS[5], s)
leave_ready(ready, turns, ARGV[2], s.root)
leave_blocked(KEYS[3], ARGV[2], s.root)
redis.call('HSET', KEYS[1], 'state', 'running', 'updated_ms', now)
changed('run', session_of(KEYS[1]), ARGV[2], 'running', 'program=' .. ARGV[3])
changed('session', session_of(KEYS[1]), '-', 'running')
return 1
