-- dead_leave: a dead letter leaves, and envelopes are published in the same step: its replay, the note that
-- somebody dropped it, or both. A dead letter that is gone already leaves nothing behind.
-- One that the audit writer has not read is counted as `unaudited`.
-- Where a copy of the message was accepted meanwhile, its mark stays: the replay is a duplicate then.
-- KEYS  1 dead letters  2 totals  3 seen mark of the first envelope, or KEYS[1] for none
--       4 index of the dead letters  5 their usage  6… stream of each envelope
-- ARGV  1 id of the dead letter's entry  2 mark's lifetime in ms
--       3… for each envelope: how many arguments follow for it, then field, value, … of its entry
-- Returns  entry id of the first envelope | false
-- Complexity: O(envelopes + log(dead letters)).
-- include: base
-- include: dead
local entry = redis.call('XRANGE', KEYS[1], ARGV[1], ARGV[1])[1]
if not entry then return false end
check('HLEN', KEYS[2], KEYS[5])
check('XLEN', unpack(KEYS, 6))
local member = dead_member_of(entry)
dead_forget(KEYS[4], KEYS[5], member)
-- The audit writer will not read it any more: its absence from the trail is no sign that nobody refused the message.
local audited = dead_audited(KEYS[1])
if audited and string.match(member, '^.-%z(.-)%z') > audited then dead_unaudited(KEYS[5], 1, clock('')) end
redis.call('XDEL', KEYS[1], ARGV[1])
local first, at = nil, 3
for i = 6, #KEYS do
  local last = at + tonumber(ARGV[at])
  local id = append(KEYS[i], KEYS[2], unpack(ARGV, at + 1, last))
  first = first or id
  at = last + 1
end
if KEYS[3] ~= KEYS[1] then redis.call('SET', KEYS[3], first, 'NX', 'PX', ARGV[2]) end
return first
