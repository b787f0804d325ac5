-- forget_consumers: take consumers that are long gone and hold nothing off the records of a group.
-- Asking and deleting is one step: deleting a consumer that holds something would lose what it holds.
-- KEYS  1 stream
-- ARGV  1 group  2 ms of silence after which a consumer is gone
-- Returns  how many were forgotten
-- Complexity: O(consumers).
local forgotten, rows = 0, redis.pcall('XINFO', 'CONSUMERS', KEYS[1], ARGV[1])
if rows.err then return 0 end
for _, row in ipairs(rows) do
  local fact = {}
  for i = 1, #row, 2 do fact[row[i]] = row[i + 1] end
  if fact['pending'] == 0 and fact['idle'] > tonumber(ARGV[2]) then
    redis.call('XGROUP', 'DELCONSUMER', KEYS[1], ARGV[1], fact['name'])
    forgotten = forgotten + 1
  end
end
return forgotten
