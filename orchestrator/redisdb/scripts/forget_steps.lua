-- forget_steps: the holder of a run drops steps that an earlier try recorded, as its agent takes other ones.
-- KEYS  1 run  2 steps
-- ARGV  1 claim  2… keys of the steps
-- Returns  {'done'} | {'lost'}
-- include: base
-- include: steps
if not held_run(KEYS[1], ARGV[1]) then return { 'lost' } end
forget_steps(KEYS[1], { unpack(ARGV, 2) })
return { 'done' }
