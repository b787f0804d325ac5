-- submit: make a root session and publish its task-delegation, or keep that until its time. Idempotent by session id.
-- A fork begins with texts of its own: `kept` names the large ones among them, which live as long as the session from now on.
-- KEYS  1 session  2 bodies  3 tree@session  4 roots  5 totals  6 stream  7 budget  8 large_texts  9 timers
-- ARGV  1 now or ''  2 session id  3 prompt  4 envelope  5 its budget: what, limit, …, or ''
--       6 texts of a fork beside its prompt, as a JSON object, or ''  7 SHA-256 of the large ones, as a JSON list
--       8 when it is to begin, in ms since the epoch, or '' for now  9 its task beside the prompt, as JSON, or ''
--       10 ms that it may take once it begins, or 0  11… field, value, … of the session
-- Returns  {'created', state, ''} or {'exists', state, agent, '1': with this prompt, '0': with another, '': it is gone}
--          or {'whole'}: a large text is gone, store it again
-- include: base
-- include: new
local now = clock(ARGV[1])
local state = redis.call('HMGET', KEYS[1], 'state', 'agent')
if state[1] then
  local prompt = redis.call('HGET', KEYS[2], 'prompt')
  return { 'exists', state[1], state[2], prompt and (prompt == ARGV[3] and '1' or '0') or '' }
end
local texts, kept = ARGV[6] ~= '' and cjson.decode(ARGV[6]) or {}, ARGV[6] ~= '' and cjson.decode(ARGV[7]) or {}
for _, sha256 in ipairs(kept) do
  if redis.call('EXISTS', KEYS[1] .. ':whole:' .. sha256) == 0 then return { 'whole' } end
end
check('ZCARD', KEYS[3], KEYS[4], KEYS[9])
check('HLEN', KEYS[2], KEYS[5], KEYS[7])
local due = ARGV[8] ~= '' and tonumber(ARGV[8]) > now and ARGV[8] or nil
local facts, encrypted = {}, false
for i = 11, #ARGV do
  facts[#facts + 1] = ARGV[i]
  if i % 2 == 1 and ARGV[i] == 'encrypted' then encrypted = true end
end
local entry = ''
-- The router cannot read which session an encrypted envelope begins.
if not due then entry = publish(KEYS[6], KEYS[5], ARGV[4], unpack(encrypted and { 'session', ARGV[2] } or {})) end
new_session(KEYS[1], ARGV[2], ARGV[2], '', 0, due and 'scheduled' or 'pending', now, 'entry', entry, unpack(facts))
redis.call('HSET', KEYS[2], 'prompt', ARGV[3])
if ARGV[9] ~= '' then redis.call('HSET', KEYS[2], 'task', ARGV[9]) end
if not due then limit_time(KEYS[9], KEYS[1], ARGV[2], now, ARGV[10]) end
for name, text in pairs(texts) do redis.call('HSET', KEYS[2], name, text) end
for _, sha256 in ipairs(kept) do keep(KEYS[1] .. ':whole:' .. sha256, KEYS[8], sha256) end
changed('session', ARGV[2], '-', due and 'scheduled' or 'pending', 'agent=' .. redis.call('HGET', KEYS[1], 'agent'))
if set_budget(KEYS[7], ARGV[5]) then
  redis.call('HSET', KEYS[1], 'budgets', ARGV[2])
  changed('budget', ARGV[2], '-', 'limited', ARGV[5])
end
if due then
  redis.call('HSET', KEYS[1], 'due_ms', due, 'time_limit_ms', ARGV[10])
  redis.call('HSET', KEYS[2], 'envelope', ARGV[4])
  redis.call('ZADD', KEYS[9], due, 'submit|' .. ARGV[2])
end
redis.call('ZADD', KEYS[3], now, ARGV[2])
redis.call('ZADD', KEYS[4], now, ARGV[2])
return { 'created', due and 'scheduled' or 'pending', '' }
