-- forget_steps: the holder of a run drops steps that an earlier try recorded, as its agent takes other ones.
-- KEYS  1 session
-- ARGV  1 request: run, claim; steps: their keys
-- Returns  {'done'} | {'lost'}
-- include: base
-- include: request
-- include: steps
local RUN = in_shard('run:' .. q.run)
if not held_run(RUN, q.claim) then return { 'lost' } end
forget_steps(RUN, q.steps or {})
return { 'done' }
