-- claim_external: the first run of a session whose agent is a program outside of the stack is at work from now on.
-- That program reads the task from the stream; no worker is sent anything, and no lease is kept for it.
-- KEYS  1 session
-- ARGV  1 request: run; agent
-- Returns  1 taken | 0 it is not queued (any more)
-- Complexity: O(log(dispatch)).
-- include: base
-- include: request
-- include: ready
local RUN, QUEUED = in_shard('run:' .. q.run), in_shard('queued')
local READY, TURNS = in_shard('ready:' .. q.agent), in_shard('turns:' .. q.agent)
local now = clock(q.now)
if redis.call('HGET', RUN, 'state') ~= 'queued' then return 0 end
redis.call('HSET', RUN, 'state', 'running', 'claim', 'external', 'worker', q.agent, 'attempt', 1, 'started_ms', now)
redis.call('ZREM', QUEUED, q.run)
local root = fields(KEYS[1], 'root').root
leave_ready(READY, TURNS, q.run, root)
leave_blocked(QUEUED, q.run, root)
redis.call('HSET', KEYS[1], 'state', 'running', 'updated_ms', now)
changed('run', session_of(KEYS[1]), q.run, 'running', 'program=' .. q.agent)
changed('session', session_of(KEYS[1]), '-', 'running')
return 1
