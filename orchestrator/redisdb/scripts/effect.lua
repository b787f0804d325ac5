-- effect: an agent's effect that changes only its own session (progress) or nothing in the ledger at all
-- (a message to the audit trail): recorded under its key, its envelope published once.
-- KEYS  1 session  2 run  3 effects  4 totals  5 stream
-- ARGV  1 now or ''  2 claim  3 effect key  4 envelope or ''  5 value kept under the key
--       6 '1': the envelope tells only the audit trail, and the router acknowledges it  7… field, value, …
-- Returns  {'done'} | {'exists', value} | {'lost'}
-- include: base
local now = clock(ARGV[1])
if not held_run(KEYS[2], ARGV[2]) then return { 'lost' } end
local made = redis.call('HGET', KEYS[3], ARGV[3])
if made then return { 'exists', cjson.decode(made).value } end
check('HLEN', KEYS[4])
check('XLEN', KEYS[5])
local facts = { 'updated_ms', now }
for i = 7, #ARGV do facts[#facts + 1] = ARGV[i] end
redis.call('HSET', KEYS[1], unpack(facts))
redis.call('HSET', KEYS[3], ARGV[3], cjson.encode({ value = ARGV[5], claim = ARGV[2] }))
publish(KEYS[5], KEYS[4], ARGV[4], unpack(ARGV[6] == '1' and { 'already_applied', '1' } or {}))
return { 'done' }
