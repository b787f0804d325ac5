-- agree: a part of a stack that begins says which settings it has of those that all parts must have the same. They change
-- only while no part is alive. Safe to repeat.
-- KEYS  1 agreed  2 services
-- ARGV  1 now  2 ms within which a part that has agreed is registered as alive  3… name, value
-- Returns  {'agreed'} | {'other', name, value}: the stack has another value; nothing was changed
-- Complexity: O(parts of the stack).
local now, other = tonumber(ARGV[1]), nil
for k = 3, #ARGV, 2 do
  local known = redis.call('HGET', KEYS[1], ARGV[k])
  if known and known ~= ARGV[k + 1] then other = other or { 'other', ARGV[k], known } end
end
if other then
  local age = now - (tonumber(redis.call('HGET', KEYS[1], 'at') or '') or 0)
  if age >= 0 and age < tonumber(ARGV[2]) then return other end
  for _, record in ipairs(redis.call('HVALS', KEYS[2])) do
    local fine, part = pcall(cjson.decode, record)
    if fine and type(part) == 'table' and (tonumber(part.alive_until_ms) or 0) >= now then return other end
  end
end
redis.call('HSET', KEYS[1], 'at', ARGV[1], unpack(ARGV, 3))
return { 'agreed' }
