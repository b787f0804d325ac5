-- outline: a few fields of many sessions of one tree, for one who draws the whole of it.
-- KEYS  1 tree
-- ARGV  1 how many fields  2… the fields, then the sessions
-- Returns  {the values of each session; nil where the record is of another type, …}
-- Complexity: O(sessions), of which the caller names a thousand at most: others wait meanwhile.
local names, last = {}, 1 + tonumber(ARGV[1])
for at = 2, last do names[#names + 1] = ARGV[at] end
local shard, found = string.match(KEYS[1], '^[^{]*{[^}]*}:'), {}
for at = last + 1, #ARGV do
  local values = redis.pcall('HMGET', shard .. 'session:' .. ARGV[at], unpack(names))
  found[#found + 1] = not values.err and values
end
return found
