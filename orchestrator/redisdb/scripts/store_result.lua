-- store_result: write the Celery result of a root, but never over a terminal one.
-- Repeating it with the same payload changes nothing.
-- KEYS  1 Celery's key of the task's result
-- ARGV  1 payload as Celery encodes it  2 seconds that it lives
-- Returns  1 stored | 0 a terminal result is there
-- Complexity: O(size of the result).
local old = redis.call('GET', KEYS[1])
if old then
  local readable, meta = pcall(cjson.decode, old)
  if readable and (meta.status == 'SUCCESS' or meta.status == 'FAILURE' or meta.status == 'REVOKED') then
    return 0
  end
end
redis.call('SET', KEYS[1], ARGV[1], 'EX', ARGV[2])
-- Celery's `get()` listens on a channel of the key's name.
redis.call('PUBLISH', KEYS[1], ARGV[1])
return 1
