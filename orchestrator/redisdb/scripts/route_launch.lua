-- route_launch: a message that gives a registered agent work becomes a session and its first run, in one step
-- with the mark and the acknowledgement. Its sender is no session of this ledger, or one that an external program
-- runs: it is owed an envelope and no callback. Where no session is above it, `parent` is the session itself.
-- KEYS  1 session  2 bodies  3 tree  4 roots  5 runs  6 run  7 queued  8 mark  9 stream  10 conversation  11 session@parent
--       12 items@parent  13 timers  14 ready  15 turns
-- ARGV  1 now or ''  2 session id  3 run id  4 group  5 entry id  6 mark's lifetime in ms  7 prompt
--       8 parent id or ''  9 callback id  10 task id  11 first message of its chain  12 most messages or 0
--       13 lifetime of the conversation in ms  14 ms until the sweep looks at the run  15 digest
--       16 message id  17 recipient  18 when a review has to be done, in ms, or 0
--       19 its sender, or '' for one of the system's own  20 '1': it begins the conversation that is named by its own
--       message-id, which anybody may have used before  21 its task beside the prompt, as JSON, or ''
--       22 '1': it is a replay of the operator's, whose conversation may be forgotten  23… field, value, …
-- Returns  {'started', run, agent, 'start', '1': tell workers of it | '0'} | {'duplicate'} | {'task', session that has the task-id}
--          | {'closed', state of the parent, or 'removed'} | {'chain'} | {'limit'} | {'stranger'}: its sender has no part in the
--          conversation | {'other'}: its id is another message's; on the last six nothing was acknowledged
-- Complexity: O(1).
-- include: base
-- include: new
-- include: conversation
-- include: mark
-- include: ready
local now = clock(ARGV[1])
local answer = answered(KEYS[8], KEYS[9], ARGV[4], ARGV[5], ARGV[15])
if answer then return answer end
local s = fields(KEYS[1], 'id', 'agent', 'run')
if s.id ~= '' then
  redis.call('XACK', KEYS[9], ARGV[4], ARGV[5])
  if redis.call('HGET', KEYS[6], 'state') == 'queued' then
    return { 'started', s.run, s.agent, 'start', must_ring(KEYS[14], KEYS[15], now) }
  end
  return { 'duplicate' }
end
local party = takes_part(KEYS[10], ARGV[19])
if not party and ARGV[20] ~= '1' then return { 'stranger' } end
local taken = redis.call('HGET', KEYS[10], 'task:' .. ARGV[10])
if taken then return { 'task', taken } end
local p = { id = '', root = ARGV[2], depth = '-1', budgets = '' }
if ARGV[8] ~= '' then
  p = fields(KEYS[11], 'id', 'root', 'depth', 'state', 'budgets')
  if p.id == '' then return { 'closed', 'removed' } end
  if CLOSED[p.state] then return { 'closed', p.state } end
end
check('ZCARD', KEYS[3], KEYS[4], KEYS[7], KEYS[13], KEYS[14])
check('HLEN', KEYS[2], KEYS[12], KEYS[15])
check('LLEN', KEYS[5])
local wrong = converse(KEYS[10], ARGV[11], tonumber(ARGV[12]), ARGV[13], (ARGV[19] == '' or ARGV[22] == '1') and '' or ARGV[16])
if wrong ~= '' then return { wrong } end

local facts = {}
for i = 23, #ARGV do facts[#facts + 1] = ARGV[i] end
new_session(KEYS[1], ARGV[2], p.root, p.id, count(p.depth) + 1, 'pending', now, 'run', ARGV[3], 'runs', 1, unpack(facts))
redis.call('HSET', KEYS[2], 'prompt', ARGV[7])
if ARGV[21] ~= '' then redis.call('HSET', KEYS[2], 'task', ARGV[21]) end
if p.budgets ~= '' then redis.call('HSET', KEYS[1], 'budgets', p.budgets) end
redis.call('ZADD', KEYS[3], now, ARGV[2])
if p.id == '' then redis.call('ZADD', KEYS[4], now, ARGV[2]) end
s = fields(KEYS[1], 'agent', 'priority', 'title')
if p.id ~= '' then
  save(KEYS[12], ARGV[9], { kind = 'completion', state = 'none', child = ARGV[2], agent = s.agent, status = '',
    priority = s.priority, seq = 0, size = 0, run = '', reason = '', title = s.title, group = '',
    on_failure = 'deliver', at_ms = now })
  redis.call('HINCRBY', KEYS[11], 'children', 1)
end
redis.call('HSET', KEYS[10], 'begun', '1', 'task:' .. ARGV[10], ARGV[2], 'agent:' .. ARGV[17], ARGV[2])
if party and ARGV[19] ~= '' then redis.call('HSET', KEYS[10], 'party:' .. ARGV[19], '1') end
-- The first launch by a message of that id stays, also when the id is used again.
redis.call('HSETNX', KEYS[10], 'launch:' .. ARGV[16], ARGV[2])
if ARGV[18] ~= '0' then end_by(KEYS[13], KEYS[1], ARGV[2], 'review', ARGV[18]) end
changed('session', ARGV[2], '-', 'pending', 'agent=' .. s.agent, 'parent=' .. p.id)
new_run(KEYS[6], KEYS[5], ARGV[3], ARGV[2], 1, 'start', {}, now)
redis.call('ZADD', KEYS[7], now + tonumber(ARGV[14]), ARGV[3])
accept(KEYS[8], KEYS[9], ARGV[4], ARGV[5], ARGV[15], ARGV[6])
make_ready(KEYS[14], KEYS[15], ARGV[3], p.root, s.priority)
return { 'started', ARGV[3], s.agent, 'start', must_ring(KEYS[14], KEYS[15], now) }
