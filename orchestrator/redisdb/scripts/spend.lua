-- spend: the holder of a run says what a call cost for which it had reserved the most. Said twice, it counts once.
-- Besides KEYS the script touches the budgets that the reservation names; they carry the hash tag of KEYS.
-- KEYS  1 session  2 run  3 reserved
-- ARGV  1 now or ''  2 claim  3 id of the reservation  4 agent  5 requests  6 input tokens  7 output tokens
--       8 billionths of a USD
-- Returns  {'done'} | {'unknown'}: there is no such reservation any more | {'lost'}
-- Complexity: O(budgets).
-- include: base
-- include: budget
local now = clock(ARGV[1])
if not held_run(KEYS[2], ARGV[2]) then return { 'lost' } end
local text = redis.call('HGET', KEYS[3], ARGV[3])
if not text then return { 'unknown' } end
local reservation = cjson.decode(text)
local cost = { requests = tonumber(ARGV[5]), tokens = tonumber(ARGV[6]) + tonumber(ARGV[7]), nano = tonumber(ARGV[8]) }
redis.call('HDEL', KEYS[3], ARGV[3])
unreserve(reservation)
for _, budget in ipairs(reservation.budgets) do
  if redis.call('TYPE', budget).ok == 'hash' then
    for _, what in ipairs(COUNTED) do
      if cost[what] > 0 then
        local more = string.format('%.0f', cost[what])
        redis.call('HINCRBY', budget, 'spent:' .. what, more)
        redis.call('HINCRBY', budget, 'by:' .. ARGV[4] .. ':' .. what, more)
      end
    end
  end
end
for what, more in pairs({ requests = ARGV[5], input_tokens = ARGV[6], output_tokens = ARGV[7], nano_usd = ARGV[8] }) do
  if more ~= '0' then redis.call('HINCRBY', KEYS[1], 'used_' .. what, more) end
end
redis.call('HSET', KEYS[1], 'updated_ms', now)
changed('budget', session_of(KEYS[1]), ARGV[3], 'spent', 'requests=' .. ARGV[5], 'input_tokens=' .. ARGV[6],
  'output_tokens=' .. ARGV[7], 'nano_usd=' .. ARGV[8])
return { 'done' }
