-- trim: drop the entries of a stream that every group named has acknowledged, and count them (not those of an inbox, which
-- nobody asks for). A required group that does not exist yet needs everything; an optional one only counts where it exists.
-- Safe to repeat and to run in several processes: groups only move forward, and what is trimmed is decided and done in one step.
-- KEYS  1 stream  2 totals
-- ARGV  1 number of required groups  2… required groups, then optional ones
-- Returns  how many entries were dropped
-- Complexity: O(groups + entries dropped).
local function parts(id) return string.match(id, '^(%d+)-(%d+)$') end

-- Ids are compared as text, as their numbers may exceed 2^53.
local function padded(id)
  local ms, seq = parts(id)
  return string.rep('0', 20 - #ms) .. ms .. string.rep('0', 20 - #seq) .. seq
end
local function least(a, b)
  if a and padded(a) < padded(b) then return a end
  return b
end

local function following(id)
  local ms, seq = parts(id)
  return ms .. '-' .. string.format('%.0f', tonumber(seq) + 1)
end

if redis.call('XLEN', KEYS[1]) == 0 then return 0 end
local delivered = {}
for _, row in ipairs(redis.call('XINFO', 'GROUPS', KEYS[1])) do
  local fact = {}
  for i = 1, #row, 2 do fact[row[i]] = row[i + 1] end
  delivered[fact['name']] = fact['last-delivered-id']
end
local lowest
for i = 2, #ARGV do
  local last = delivered[ARGV[i]]
  if last then
    local pending = redis.call('XPENDING', KEYS[1], ARGV[i])
    lowest = least(lowest, following(last))
    if pending[1] > 0 then lowest = least(lowest, pending[2]) end
  elseif i <= tonumber(ARGV[1]) + 1 then
    return 0
  end
end
if not lowest then return 0 end
local dropped = redis.call('XTRIM', KEYS[1], 'MINID', lowest)
local kind = string.match(KEYS[1], ':msg:(.*)$') or string.match(KEYS[1], ':transitions$') and 'ledger:transitions'
if dropped > 0 and kind then redis.call('HINCRBY', KEYS[2], 'trimmed:' .. kind, dropped) end
return dropped
