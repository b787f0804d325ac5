-- changed_roots: a page of the roots of a shard, without those whose trees came to rest long ago. Changes nothing.
-- KEYS  1 roots  2 timers
-- ARGV  1 cursor  2 roots of a page, about  3 when a tree expires that came to rest just so long ago, in ms since the epoch
-- Returns  {cursor, '0' at the end; how many trees are at rest; root, …}
-- Complexity: O(page).
local page = redis.call('ZSCAN', KEYS[1], ARGV[1], 'COUNT', ARGV[2])
local answer, at_rest = { page[1], 0 }, 0
for i = 1, #page[2], 2 do
  local due = tonumber(redis.call('ZSCORE', KEYS[2], 'expire|' .. page[2][i]) or '')
  if due and due < tonumber(ARGV[3]) then at_rest = at_rest + 1 else answer[#answer + 1] = page[2][i] end
end
answer[2] = at_rest
return answer
