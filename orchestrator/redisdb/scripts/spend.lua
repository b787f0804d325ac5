-- spend: the holder of a run says what a call cost for which it had reserved the most. Said twice, it counts once.
-- Besides KEYS the script touches the budgets that the reservation names; they carry the hash tag of KEYS.
-- KEYS  1 session
-- ARGV  1 request: run, claim; reservation: its id; agent; cost: requests, input_tokens, output_tokens, nano_usd: billionths of a USD,
--         and estimated: those of the tokens that are; as text of whole numbers
-- Returns  {'done'} | {'unknown'}: there is no such reservation any more | {'lost'}
-- Complexity: O(budgets).
-- include: base
-- include: request
-- include: budget
local RUN = in_shard('run:' .. q.run)
local RESERVED = RUN .. ':reserved'
local now = clock(q.now)
if not held_run(RUN, q.claim) then return { 'lost' } end
local text = redis.call('HGET', RESERVED, q.reservation)
if not text then return { 'unknown' } end
redis.call('HDEL', RESERVED, q.reservation)
count_cost(KEYS[1], q.agent, q.reservation, cjson.decode(text), q.cost)
redis.call('HSET', KEYS[1], 'updated_ms', now)
return { 'done' }
