-- take: a running session takes one queued item into its current run: how a blocking call gets its answer.
-- The mark `taken` tells it, when the run is tried again, from what the run was made to carry.
-- KEYS  1 items  2 queue  3 run  4 bodies  5 session  6 waiting
-- ARGV  1 claim id  2 item id  3 wait: the run stands still for it | give up: it does so no longer | '': neither
-- Returns  {'taken', record as JSON, text} | {'not yet', state of the item} | {'lost'} | {'unknown'}
-- include: base
local r = fields(KEYS[3], 'id', 'state', 'claim', 'items', 'session')
if r.state ~= 'running' or r.claim ~= ARGV[1] then return { 'lost' } end
-- For whoever asks why the run does not move. A later try of the run has another claim.
if ARGV[3] == 'wait' then redis.call('HSET', KEYS[3], 'awaits:' .. ARGV[2], ARGV[1]) end
if ARGV[3] == 'give up' then redis.call('HDEL', KEYS[3], 'awaits:' .. ARGV[2]) end
local record = item(KEYS[1], ARGV[2])
if not record then return { 'unknown' } end
if record.state == 'claimed' and record.run == r.id then
  redis.call('HDEL', KEYS[3], 'awaits:' .. ARGV[2])
  return { 'taken', cjson.encode(record), redis.call('HGET', KEYS[4], ARGV[2]) or '' }
end
if record.state ~= 'queued' then
  if record.state == 'owed' and not record.awaited then
    -- The run waits for this very item, so its coming is told, whatever the waiting policy says.
    record.awaited = true
    save(KEYS[1], ARGV[2], record)
  end
  return { 'not yet', record.state }
end
record.state = 'claimed'
record.run = r.id
record.taken = true
save(KEYS[1], ARGV[2], record)
redis.call('ZREM', KEYS[2], ARGV[2])
if redis.call('ZCARD', KEYS[2]) == 0 then redis.call('ZREM', KEYS[6], r.session) end
local ids = cjson.decode(r.items)
ids[#ids + 1] = ARGV[2]
redis.call('HSET', KEYS[3], 'items', cjson.encode(ids))
redis.call('HDEL', KEYS[3], 'awaits:' .. ARGV[2])
return { 'taken', cjson.encode(record), redis.call('HGET', KEYS[4], ARGV[2]) or '' }
