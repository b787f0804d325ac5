-- spend: the holder of a run says what a call cost for which it had reserved the most. Said twice, it counts once.
-- Besides KEYS the script touches the budgets that the reservation names; they carry the hash tag of KEYS.
-- KEYS  1 session  2 run  3 reserved
-- ARGV  1 now or ''  2 claim  3 id of the reservation  4 agent  5 requests  6 input tokens  7 output tokens
--       8 billionths of a USD  9 of the tokens, those that are an estimate
-- Returns  {'done'} | {'unknown'}: there is no such reservation any more | {'lost'}
-- Complexity: O(budgets).
-- include: base
-- include: budget
local now = clock(ARGV[1])
if not held_run(KEYS[2], ARGV[2]) then return { 'lost' } end
local text = redis.call('HGET', KEYS[3], ARGV[3])
if not text then return { 'unknown' } end
redis.call('HDEL', KEYS[3], ARGV[3])
count_cost(KEYS[1], ARGV[4], ARGV[3], cjson.decode(text), { requests = ARGV[5], input_tokens = ARGV[6],
  output_tokens = ARGV[7], nano_usd = ARGV[8], estimated = ARGV[9] })
redis.call('HSET', KEYS[1], 'updated_ms', now)
return { 'done' }
