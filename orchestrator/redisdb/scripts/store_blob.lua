-- store_blob: gives a finished upload its final name; a blob that stands there already is replaced by it.
-- Nothing refers to a blob before this has run, and an upload that is never finished expires by itself. Safe to
-- repeat: the second time the upload is gone and the blob is there.
-- KEYS  1 the upload  2 the blob under its content hash
-- ARGV  1 lifetime in ms; a longer one, or none, that the blob has already is kept  2 chunks that the upload must hold
-- Returns  1 | 0: the upload is gone or not whole, and the content is not stored either
local lifetime = tonumber(ARGV[1])
local left = redis.call('PTTL', KEYS[2])
if redis.call('EXISTS', KEYS[1]) == 0 then
  if left == -2 then return 0 end
else
  -- Beside its chunks an upload holds the one field that describes it.
  if redis.call('HLEN', KEYS[1]) ~= tonumber(ARGV[2]) + 1 then return 0 end
  redis.call('UNLINK', KEYS[2])
  redis.call('RENAME', KEYS[1], KEYS[2])
end
if left == -1 then
  redis.call('PERSIST', KEYS[2])
else
  redis.call('PEXPIRE', KEYS[2], math.max(left, lifetime))
end
return 1
