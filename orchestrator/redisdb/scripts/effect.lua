-- effect: an agent's effect that changes only its own session (progress) or nothing in the ledger at all
-- (a message to the audit trail): recorded under its key, its envelope published once.
-- KEYS  1 session
-- ARGV  1 request: run, claim; effect: its key; stream: of the envelope; only_audit: the envelope tells only the audit trail,
--         and the router acknowledges it; whole: SHA-256 of the large text to which the value refers
--       2 envelope or ''  3 value kept under the key  4… field, value, …
-- Returns  {'done'} | {'exists', value} | {'lost'}
-- include: base
-- include: request
local RUN, TOTALS, STREAM = in_shard('run:' .. q.run), in_shard('totals'), q.stream and in_shard(q.stream)
local EFFECTS = RUN .. ':effects'
if not held_run(RUN, q.claim) then return { 'lost' } end
local made = redis.call('HGET', EFFECTS, q.effect)
if made then return { 'exists', cjson.decode(made).value } end
check('HLEN', TOTALS)
if STREAM then check('XLEN', STREAM) end
redis.call('HSET', KEYS[1], 'updated_ms', clock(q.now), unpack(ARGV, 4))
if q.whole then keep(KEYS[1] .. ':whole:' .. q.whole, KEYS[1] .. ':large-texts', q.whole) end
redis.call('HSET', EFFECTS, q.effect, cjson.encode({ value = ARGV[3], claim = q.claim }))
if STREAM then publish(STREAM, TOTALS, ARGV[2], unpack(q.only_audit and { 'already_applied', '1' } or {})) end
return { 'done' }
