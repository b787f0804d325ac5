-- delegate: a running parent launches a child: child pending, callback owed, envelope published.
-- The effect key makes it one launch, however often the run is tried: the same key gives the same child.
-- KEYS  1 parent  2 parent's items  3 run  4 effects  5 child  6 child's bodies  7 tree  8 totals  9 stream
--       10 root
-- ARGV  1 now or ''  2 claim  3 effect key  4 child id  5 callback id  6 callback owed '1' | '0'  7 group
--       8 on_failure  9 priority  10 title  11 prompt  12 envelope  13 max children  14 max depth
--       15 max sessions in the tree  16 on_close: what becomes of it when its parent is closed, or ''
--       17 max runs in the tree  18… field, value, … of the child
-- Returns  {'created' | 'exists', child id} | {'lost'} | {'limit', name, limit}
-- include: base
local now = clock(ARGV[1])
local r = fields(KEYS[3], 'state', 'claim')
if r.state ~= 'running' or r.claim ~= ARGV[2] then return { 'lost' } end
local made = redis.call('HGET', KEYS[4], ARGV[3])
if made then
  local effect = cjson.decode(made)
  effect.claim = ARGV[2]
  redis.call('HSET', KEYS[4], ARGV[3], cjson.encode(effect))
  return { 'exists', effect.child }
end
local p = fields(KEYS[1], 'id', 'root', 'agent', 'depth', 'children')
if count(p.children) >= tonumber(ARGV[13]) then return { 'limit', 'max_children', ARGV[13] } end
if count(p.depth) + 1 > tonumber(ARGV[14]) then return { 'limit', 'max_depth', ARGV[14] } end
local sessions = redis.call('ZCARD', KEYS[7])
if sessions >= tonumber(ARGV[15]) then return { 'limit', 'max_sessions_per_tree', ARGV[15] } end
if runs_of(sessions, KEYS[10]) >= tonumber(ARGV[17]) then return { 'limit', 'max_runs_per_tree', ARGV[17] } end
local owes = ARGV[6] == '1'
local entry = publish(KEYS[9], KEYS[8], ARGV[12])
local facts = {}
for i = 18, #ARGV do facts[#facts + 1] = ARGV[i] end
redis.call('HSET', KEYS[5], 'id', ARGV[4], 'root', p.root, 'parent', p.id, 'depth', count(p.depth) + 1,
  'state', 'pending', 'run', '', 'runs', 0, 'launched', 0, 'delivered', 0, 'dead', 0, 'owed', 0,
  'questions', 0, 'seq', 0, 'created_ms', now, 'updated_ms', now, 'ended_ms', 0, 'callback', ARGV[6],
  'priority', ARGV[9], 'title', ARGV[10], 'delegator', p.agent, 'entry', entry, unpack(facts))
redis.call('HSET', KEYS[6], 'prompt', ARGV[11])
-- After whatever the tree has already, in the same millisecond too: a double has room for 4096 between two.
local last = tonumber(redis.call('ZREVRANGE', KEYS[7], 0, 0, 'WITHSCORES')[2])
redis.call('ZADD', KEYS[7], math.max(now, last and last + 1 / 4096 or now), ARGV[4])
local agent = redis.call('HGET', KEYS[5], 'agent')
save(KEYS[2], ARGV[5], { kind = 'completion', state = owes and 'owed' or 'none', child = ARGV[4], agent = agent,
  status = '', priority = ARGV[9], seq = 0, size = 0, run = '', reason = '', title = ARGV[10],
  group = ARGV[7], on_failure = ARGV[8], on_close = ARGV[16] ~= '' and ARGV[16] or nil, at_ms = now })
redis.call('HINCRBY', KEYS[1], 'children', 1)
if owes then
  redis.call('HINCRBY', KEYS[1], 'launched', 1)
  redis.call('HINCRBY', KEYS[1], 'owed', 1)
  redis.call('HINCRBY', KEYS[1], group_field(ARGV[7], 'owed'), 1)
  redis.call('HINCRBY', KEYS[1], group_field(ARGV[7], 'launched'), 1)
end
redis.call('HSET', KEYS[4], ARGV[3], cjson.encode({ child = ARGV[4], callback = ARGV[5], claim = ARGV[2] }))
return { 'created', ARGV[4] }
