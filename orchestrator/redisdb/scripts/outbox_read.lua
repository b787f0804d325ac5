-- outbox_read: entries of an external program's outbox are handed to a router, which checks their types and takes them over
-- (route_collect). One that is larger than any message is never sent to a router: its stream of refusals is told how large it was.
-- Sent twice, it hands out what follows; what the first call handed out is pending under the same consumer.
-- KEYS  1 outbox  2 stream where the router refuses  3 totals  4 what the program said in this minute
-- ARGV  1 group  2 consumer  3 program  4 most entries  5 octets after which no more are read  6 octets of the largest entry
--       7 octets that count as one message
-- Returns  {entries handed out, as XRANGE has them; how many it said in this minute; ms that are left of that}
-- Complexity: O(octets read), which is at most ARGV 5 and one entry.
-- include: base
-- include: quota
check('XLEN', KEYS[2])
check('HLEN', KEYS[3])
local found, octets = {}, 0
local counted = { count_said(KEYS[4], 0) }
while #found < tonumber(ARGV[4]) and octets < tonumber(ARGV[5]) do
  local answer = redis.call('XREADGROUP', 'GROUP', ARGV[1], ARGV[2], 'COUNT', 1, 'STREAMS', KEYS[1], '>')
  if not answer then break end
  local entry, size = answer[1][2][1], 0
  for _, part in ipairs(entry[2]) do size = size + #part end
  octets = octets + size
  if size > tonumber(ARGV[6]) then
    redis.call('XACK', KEYS[1], ARGV[1], entry[1])
    redis.call('XDEL', KEYS[1], entry[1])
    append(KEYS[2], KEYS[3], 'from', ARGV[3], 'octets', size)
    counted = { count_said(KEYS[4], math.ceil(size / tonumber(ARGV[7]))) }
  else
    found[#found + 1] = entry
  end
end
return { found, counted[1], counted[2] }
