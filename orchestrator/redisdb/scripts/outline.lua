-- outline: a few fields of many sessions of one tree, for one who draws the whole of it.
-- KEYS  1 tree
-- ARGV  1 the fields, as a JSON list  2… the sessions
-- Returns  {the values of each session; nil where the record is of another type, …}
-- Complexity: O(sessions), of which the caller names a thousand at most: others wait meanwhile.
local names, shard, found = cjson.decode(ARGV[1]), string.match(KEYS[1], '^[^{]*{[^}]*}:'), {}
for at = 2, #ARGV do
  local values = redis.pcall('HMGET', shard .. 'session:' .. ARGV[at], unpack(names))
  found[at - 1] = not values.err and values
end
return found
