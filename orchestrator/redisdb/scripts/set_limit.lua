-- set_limit: fields of the limits of a shard are set or removed; agents that may go on are woken at once. The limit of a
-- tree that was removed meanwhile is not set: nobody would remove it. What an operator says is kept a second time.
-- KEYS  1 limits  2 limits_said
-- ARGV  agents whose wake-ups start again, as a JSON list; then fields and values in turn, '' removes a field
-- Returns  how many fields changed
-- include: base
local changed = 0
-- Workers say again and again what their definitions want.
local function by_worker(field) return string.find(field, '^default[-:]') or string.find(field, '^queue:') end
check('HLEN', KEYS[1])
for i = 2, #ARGV, 2 do
  if not by_worker(ARGV[i]) then check('HLEN', KEYS[2]) end
end
local function is_gone(field)
  local root = string.match(field, '^tree:(.*)$')
  return root and redis.call('EXISTS', beside(KEYS[1], 'session:' .. root)) == 0
end
for i = 2, #ARGV, 2 do
  if not by_worker(ARGV[i]) then
    if ARGV[i + 1] == '' then
      redis.call('HDEL', KEYS[2], ARGV[i])
    elseif not is_gone(ARGV[i]) then
      redis.call('HSET', KEYS[2], ARGV[i], ARGV[i + 1])
    end
  end
  if ARGV[i + 1] == '' then
    changed = changed + redis.call('HDEL', KEYS[1], ARGV[i])
  elseif not is_gone(ARGV[i]) and redis.call('HGET', KEYS[1], ARGV[i]) ~= ARGV[i + 1] then
    redis.call('HSET', KEYS[1], ARGV[i], ARGV[i + 1])
    changed = changed + 1
  end
end
for _, agent in ipairs(cjson.decode(ARGV[1])) do
  redis.call('HDEL', beside(KEYS[1], 'turns:' .. agent), 'woken', 'wakeups')
end
return changed
