-- claim_item: a running session takes one queued item into its current run: how a blocking call gets its answer.
-- The mark `taken` tells it, when the run is tried again, from what the run was made to carry.
-- A run that stands still does not count for the limits of its agent and its tree: what it waits for may be of both.
-- KEYS  1 items  2 queue  3 run  4 bodies  5 session  6 waiting
-- ARGV  1 claim id  2 item id  3 wait: the run stands still for it | give up: it does so no longer | '': neither  4 now or ''
-- Returns  {'taken', record as JSON, text} | {'not yet', state of the item} | {'lost'} | {'unknown'}
-- include: base
-- include: ready
local r = held_run(KEYS[3], ARGV[1], 'id', 'items', 'session', 'standing')
if not r then return { 'lost' } end
-- How many items the run stands still for: several threads of an agent may call at once.
local function awaited()
  local names = redis.call('HGETALL', KEYS[3])
  local found = 0
  for i = 1, #names, 2 do
    if string.sub(names[i], 1, 7) == 'awaits:' and names[i + 1] == ARGV[1] then found = found + 1 end
  end
  return found
end
local function go_on()
  if redis.call('HDEL', KEYS[3], 'awaits:' .. ARGV[2]) == 0 or r.standing ~= '1' or awaited() > 0 then return end
  local s = fields(KEYS[5], 'agent', 'root')
  redis.call('HSET', KEYS[3], 'standing', '0')
  count_in(KEYS[3], s.agent, s.root)
end
-- `orchestra why` shows it. A later try of the run has another claim.
local function stand_still()
  if ARGV[3] ~= 'wait' then return end
  redis.call('HSET', KEYS[3], 'awaits:' .. ARGV[2], ARGV[1])
  if r.standing ~= '1' then
    local s = fields(KEYS[5], 'agent', 'root')
    redis.call('HSET', KEYS[3], 'standing', '1')
    count_out(KEYS[3], s.agent, s.root, clock(ARGV[4]))
  end
end
if ARGV[3] == 'give up' then go_on() end
local record = item(KEYS[1], ARGV[2])
if not record then
  stand_still()
  return { 'unknown' }
end
if record.state == 'claimed' and record.run == r.id then
  go_on()
  return { 'taken', cjson.encode(record), redis.call('HGET', KEYS[4], ARGV[2]) or '' }
end
if record.state ~= 'queued' then
  stand_still()
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
go_on()
return { 'taken', cjson.encode(record), redis.call('HGET', KEYS[4], ARGV[2]) or '' }
