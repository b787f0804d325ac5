-- dead_expire: dead letters that are too old, or too many, are dropped. Harmless to repeat.
-- KEYS  1 dead letters  2 their index  3 their usage
-- ARGV  1 most dead letters  2 and bytes  3 most of one sender  4 and bytes  5 their lifetime in ms
-- Returns  how many were dropped
-- Complexity: O(log(dead letters)) for each that is dropped; a hundred old ones at a time.
-- include: base
-- include: dead
local now = clock('')
local limits = {tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4]), now - tonumber(ARGV[5])}
return dead_make_room(KEYS[1], KEYS[2], KEYS[3], nil, limits, now)
