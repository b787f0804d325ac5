-- What a script is asked for: one JSON object, in which nothing is null, and what is empty, false or 0 is left out.
-- KEYS names one key of the shard. The others are made of ids and carry its hash tag, so that all are in one slot.
local q = cjson.decode(ARGV[1])
local SHARD = string.match(KEYS[1], '^[^{]*{[^}]*}:')
local function in_shard(name) return SHARD .. name end
local function session_key(id) return SHARD .. 'session:' .. id end
