-- Around every script that includes `base`: the script is the function `step`. What it changed is appended as one entry
-- to the transitions of its shard, in the same step, and counted, so that nothing can be changed without it. The audit
-- writer reads them. A stream that somebody has spoilt costs the ledger nothing; the count shows that the trail lacks it.
local changes = {}
local function step()
-- step
end
local answer = step()
if #changes > 0 then
  local shard = string.match(KEYS[1], '^[^{]*{[^}]*}:')
  redis.pcall('XADD', shard .. 'transitions', '*', 'NAME', table.concat(changes, '\n'))
  redis.pcall('HINCRBY', shard .. 'totals', 'published:ledger:transitions', 1)
end
return answer
