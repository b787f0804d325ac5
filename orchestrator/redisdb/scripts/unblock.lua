-- unblock: blocked runs of a tree are ready again, as far as the tree has room; what an end of a run could not say is
-- said by the sweep, and a limit that was raised or removed counts at once.
-- KEYS  1 running
-- ARGV  1 now or ''  2 root  3 how many at most
-- Returns  {agents whose workers are to be told}
-- Complexity: O(runs that are ready again).
-- include: base
-- include: ready
local room, most = room_in_tree(KEYS[1], ARGV[2]), tonumber(ARGV[3])
return unblock(KEYS[1], ARGV[2], math.max(0, room and math.min(room, most) or most), clock(ARGV[1]))
