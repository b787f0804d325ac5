-- reject: a run does not take an item that it carries for what it says it is: the item is dead, with the reason.
-- KEYS  1 session  2 items  3 run
-- ARGV  1 claim id  2 item id  3 reason
-- Returns  {'rejected'} | {'over', state of the item} | {'lost'}
-- include: base
local r = fields(KEYS[3], 'id', 'state', 'claim')
if r.state ~= 'running' or r.claim ~= ARGV[1] then return { 'lost' } end
local record = item(KEYS[2], ARGV[2])
if not record then return { 'over', 'unknown' } end
if record.state ~= 'claimed' or record.run ~= r.id then return { 'over', record.state } end
record.state = 'dead'
record.reason = ARGV[3]
record.rejected = true
save(KEYS[2], ARGV[2], record)
if record.kind == 'completion' then
  redis.call('HINCRBY', KEYS[1], 'dead', 1)
  redis.call('HINCRBY', KEYS[1], group_field(record.group, 'dead'), 1)
end
return { 'rejected' }
