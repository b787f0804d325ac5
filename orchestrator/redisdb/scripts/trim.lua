-- trim: drop the entries of a stream that every group named has acknowledged, and count them
-- (not those of an inbox, which nobody asks for).
--
-- A required group that does not exist yet needs everything; an optional one only counts where it exists. Safe to repeat and to run in several processes: groups
-- only move forward, and what is trimmed is decided and done in one step.
--
-- KEYS[1]  stream
-- KEYS[2]  totals of the shard
-- ARGV[1]  number of required groups
-- ARGV[2…] required groups, then optional ones
--
-- Returns how many entries were dropped.
-- Complexity: O(groups + entries dropped).
local function parts(id)
  local ms, seq = string.match(id, '^(%d+)-(%d+)$')
  return ms, seq
end

-- Numbers are compared as text: by length, then digit by digit, as they may exceed 2^53.
local function less(a, b)
  if #a ~= #b then
    return #a < #b
  end
  return a < b
end

local function before(a, b)
  local ams, aseq = parts(a)
  local bms, bseq = parts(b)
  if ams ~= bms then
    return less(ams, bms)
  end
  return less(aseq, bseq)
end

local function following(id)
  local ms, seq = parts(id)
  return ms .. '-' .. string.format('%.0f', tonumber(seq) + 1)
end

if redis.call('XLEN', KEYS[1]) == 0 then
  return 0
end
local delivered = {}
for _, row in ipairs(redis.call('XINFO', 'GROUPS', KEYS[1])) do
  local fact = {}
  for i = 1, #row, 2 do
    fact[row[i]] = row[i + 1]
  end
  delivered[fact['name']] = fact['last-delivered-id']
end
local lowest = nil
local required = tonumber(ARGV[1])
for i = 2, #ARGV do
  local last = delivered[ARGV[i]]
  if last then
    local needed = following(last)
    local pending = redis.call('XPENDING', KEYS[1], ARGV[i])
    if pending[1] > 0 and before(pending[2], needed) then
      needed = pending[2]
    end
    if lowest == nil or before(needed, lowest) then
      lowest = needed
    end
  elseif i <= required + 1 then
    return 0
  end
end
if lowest == nil then
  return 0
end
local dropped = redis.call('XTRIM', KEYS[1], 'MINID', lowest)
local kind = string.match(KEYS[1], ':msg:(.*)$') or string.match(KEYS[1], ':transitions$') and 'ledger:transitions'
if dropped > 0 and kind then
  redis.call('HINCRBY', KEYS[2], 'trimmed:' .. kind, dropped)
end
return dropped
