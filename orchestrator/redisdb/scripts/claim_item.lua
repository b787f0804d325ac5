-- claim_item: a running session takes one queued item into its current run: how a blocking call gets its answer.
-- The mark `taken` tells it, when the run is tried again, from what the run was made to carry.
-- A run that stands still does not count for the limits of its agent and its tree: what it waits for may be of both.
-- KEYS  1 session
-- ARGV  1 request: run, claim; item; waits: wait: the run stands still for it | give up: it does so no longer; last_effect
--         that this try was told of
-- Returns  {'taken', record as JSON, text} | {'not yet', state of the item | 'unknown'} | {'lost'}
-- include: base
-- include: request
-- include: ready
-- include: ends
local ITEMS, BODIES, QUEUE = KEYS[1] .. ':items', KEYS[1] .. ':bodies', KEYS[1] .. ':queue'
local RUN = in_shard('run:' .. q.run)
local r = held_run(RUN, q.claim, 'id', 'items', 'session', 'standing')
if not r then return { 'lost' } end
-- The server has started again meanwhile and has lost what the run waits for: another try does it again.
if q.last_effect and redis.call('HEXISTS', RUN .. ':effects', q.last_effect) == 0 then return { 'lost' } end
-- Whether the run stands still for any item: several threads of an agent may call at once.
local function awaits()
  for name, claim in pairs(object(RUN)) do
    if string.sub(name, 1, 7) == 'awaits:' and claim == q.claim then return true end
  end
end
local function go_on()
  if redis.call('HDEL', RUN, 'awaits:' .. q.item) == 0 or r.standing ~= '1' or awaits() then return end
  local s = fields(KEYS[1], 'agent', 'root')
  redis.call('HSET', RUN, 'standing', '0')
  count_in(RUN, s.agent, s.root)
end
-- `orchestra why` shows it. A later try of the run has another claim.
local function stand_still()
  if q.waits ~= 'wait' then return end
  redis.call('HSET', RUN, 'awaits:' .. q.item, q.claim)
  if r.standing ~= '1' then
    local s = fields(KEYS[1], 'agent', 'root')
    redis.call('HSET', RUN, 'standing', '1')
    count_out(RUN, s.agent, s.root, clock(q.now))
  end
end
if q.waits == 'give up' then go_on() end
local record = item(ITEMS, q.item)
if record and record.state == 'claimed' and record.run == r.id then
  go_on()
  return { 'taken', cjson.encode(record), text_of(q.item, redis.call('HGET', BODIES, q.item)) or '' }
end
if not record or record.state ~= 'queued' then
  stand_still()
  if record and record.state == 'owed' and not record.awaited then
    -- The run waits for this very item, so its coming is told, whatever the waiting policy says.
    record.awaited = true
    save(ITEMS, q.item, record)
  end
  return { 'not yet', record and record.state or 'unknown' }
end
record.state, record.run, record.taken = 'claimed', r.id, true
save(ITEMS, q.item, record)
redis.call('ZREM', QUEUE, q.item)
if redis.call('ZCARD', QUEUE) == 0 then redis.call('ZREM', in_shard('waiting'), r.session) end
local ids = cjson.decode(r.items)
ids[#ids + 1] = q.item
redis.call('HSET', RUN, 'items', cjson.encode(ids))
go_on()
return { 'taken', cjson.encode(record), text_of(q.item, redis.call('HGET', BODIES, q.item)) or '' }
