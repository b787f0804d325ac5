-- What became of the tries of a run, and when it may be tried again. RUN, RUNNING and DISPATCH as in lib/termination.lua.

-- Tries of one run that are kept, the last ones.
local KEPT = 20

-- Writes down that the present try has ended: `try` has how, reason and traceback; `again_ms` is when it may be tried again, or 0.
local function note_try(try, now, again_ms)
  ended_how = try.how
  local r = fields(RUN, 'tries', 'attempt', 'worker', 'started_ms')
  -- What cannot be read of what was is no reason to stop here.
  local fine, tries = pcall(cjson.decode, r.tries)
  if not fine or type(tries) ~= 'table' then tries = {} end
  try.attempt, try.worker, try.started_ms = count(r.attempt), r.worker, count(r.started_ms)
  try.ended_ms, try.again_ms = now, again_ms
  tries[#tries + 1] = try
  while #tries > KEPT do table.remove(tries, 1) end
  redis.call('HSET', RUN, 'tries', cjson.encode(tries))
end

-- The run is queued again, and not claimed before `wait_ms` have passed. How long it waits is kept beside when that
-- is over: a clock that goes back does not make it longer. `trouble` is what people are told of its session.
local function queue_again(id, reason, trouble, wait_ms, now)
  stop_counting(now)
  redis.call('HSET', RUN, 'state', 'queued', 'claim', '', 'reason', reason, 'not_before',
    wait_ms > 0 and now + wait_ms or 0, 'wait', wait_ms)
  local provider = (q.provider or '') ~= '' and 'provider=' .. q.provider
  changed('run', session_of(S), id, 'queued', 'again_in_ms=' .. wait_ms, 'how=' .. (ended_how or ''), provider or nil)
  redis.call('HSET', S, 'trouble', trouble)
  settle_open(S, RUN)
  redis.call('ZREM', RUNNING, id)
  redis.call('ZADD', DISPATCH, now + wait_ms, id)
end
