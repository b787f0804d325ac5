-- The ready runs of one agent, in the order in which slots take them. Two keys for each agent:
--   ready   sorted set: run → priority, then turn
--   turns   hash: `at:<rank>` the turn of the run that was taken last; `<rank>:<root>` the last turn that a tree was
--           given; `rung` when workers were last told that the agent has work, and `rings` how often nobody answered
-- Trees take turns within a priority: a run's turn is one after its tree's last one, and never before the present one.
-- So a tree with ten runs beside one with ten thousand waits for about ten of them.

-- Whether workers are to be told now that the agent has work. A ring that nobody answered is repeated after a
-- second, and then ever more rarely: all slots may be busy, or no worker may be there.
local RING_AGAIN_MS, RING_CAP = 1000, 6
local function must_ring(turns, now)
  local t = fields(turns, 'rung', 'rings')
  local waited = now - count(t.rung)
  -- A ring from the future was sent by a clock that has gone back since.
  if t.rung ~= '' and waited >= 0 and waited < RING_AGAIN_MS * 2 ^ math.min(count(t.rings), RING_CAP) then
    return '0'
  end
  redis.call('HSET', turns, 'rung', now, 'rings', t.rung == '' and 0 or count(t.rings) + 1)
  return '1'
end

-- Put a run that is queued among the ready ones, if it is not there.
local function make_ready(ready, turns, run, root, priority)
  if not redis.call('ZSCORE', ready, run) then
    local rank = RANK[priority] or RANK.normal
    local at = redis.call('HMGET', turns, 'at:' .. rank, rank .. ':' .. root)
    local turn = math.max(count(at[1]), count(at[2])) + 1
    redis.call('HSET', turns, rank .. ':' .. root, turn)
    redis.call('ZADD', ready, rank * 1e12 + turn, run)
  end
end

-- Remove a run from the ready ones. `score` is its place if it was taken by its turn, else nil: nobody's turn moves.
local function leave_ready(ready, turns, run, root, score)
  redis.call('ZREM', ready, run)
  if redis.call('EXISTS', ready) == 0 then
    redis.call('DEL', turns)
  elseif score then
    local rank = math.floor(score / 1e12)
    local turn = score - rank * 1e12
    redis.call('HSET', turns, 'at:' .. rank, turn)
    -- A tree that has nothing ready any more is not remembered.
    if count(redis.call('HGET', turns, rank .. ':' .. root)) == turn then
      redis.call('HDEL', turns, rank .. ':' .. root)
    end
  end
end
