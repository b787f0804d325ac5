-- recount_reserved: what a budget says is reserved is counted again from the reservations of the runs at work; and what
-- it says was spent, if that is less than its agents have spent.
-- Besides KEYS the script reads these, whose keys carry the same hash tag.
-- KEYS  1 running  2 budget
-- ARGV  none
-- Returns  how many of its numbers were wrong
-- Complexity: O(reservations of the shard).
-- include: base
-- include: budget
if redis.call('TYPE', KEYS[2]).ok ~= 'hash' then return 0 end
local right = {}
for _, id in ipairs(redis.call('ZRANGE', KEYS[1], 0, -1)) do
  local reserved = beside(KEYS[1], 'run:' .. id .. ':reserved')
  for _, text in ipairs(redis.call('TYPE', reserved).ok == 'hash' and redis.call('HVALS', reserved) or {}) do
    local fine, one = pcall(cjson.decode, text)
    for _, budget in ipairs(fine and type(one) == 'table' and one.budgets or {}) do
      if budget == KEYS[2] then
        for _, what in ipairs(COUNTED) do right[what] = (right[what] or 0) + count(one[what]) end
      end
    end
  end
end
local known, by, wrong = object(KEYS[2]), {}, {}
for name, spent in pairs(known) do
  local what = string.match(name, '^by:.*:(%l+)$')
  if what then by[what] = (by[what] or 0) + count(spent) end
end
local function set(name, number) wrong[#wrong + 1], wrong[#wrong + 2] = name, string.format('%.0f', number) end
for _, what in ipairs(COUNTED) do
  local reserved, spent = right[what] or 0, by[what] or 0
  if count(known['reserved:' .. what]) ~= reserved then set('reserved:' .. what, reserved) end
  if count(known['spent:' .. what]) < spent then set('spent:' .. what, spent) end
end
call_with('HSET', KEYS[2], wrong)
return #wrong / 2
