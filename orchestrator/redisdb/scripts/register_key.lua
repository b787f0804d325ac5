-- register_key: puts a public key's record in the registry unless a version as new is there already. Safe to repeat.
-- A record that cannot be read counts as older than any, so that garbage is replaced; whether a record is to be
-- believed is decided by its readers, who check the operator's signature over it.
-- KEYS  1 records of public keys
-- ARGV  1 key id  2 serial of the record: the number of its version  3 the record as JSON
-- Returns  the record that stands now
local known = redis.call('HGET', KEYS[1], ARGV[1])
if known then
  local readable, record = pcall(cjson.decode, known)
  local serial = readable and type(record) == 'table' and tonumber(record.serial)
  if serial and serial >= tonumber(ARGV[2]) then return known end
end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[3])
return ARGV[3]
