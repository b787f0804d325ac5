-- include: limits
-- The ready runs of one agent, in the order in which slots take them. Two keys for each agent:
--   ready   sorted set: run → priority, then turn
--   turns   hash: `at:<rank>` the turn of the run that was taken last; `<rank>:<root>` the last turn that a tree was
--           given; `woken` when workers were last told that the agent has work, and `wakeups` how often nobody answered
-- Trees take turns within a priority: a run's turn is one after its tree's last one, and never before the present one.
-- So a tree with ten runs beside one with ten thousand waits for about five of them.

-- Whether workers are to be told now that the agent has work. A wake-up that nobody answered is repeated after a
-- second, and then ever more rarely: all slots may be busy, or no worker may be there.
-- Nobody is told while the agent is paused or at its limit: a slot that ends a run of it takes the next one.
local WAKE_AGAIN_MS, WAKE_CAP = 1000, 6
-- `t`: when workers were last told, if the caller has read it.
local function must_wake(ready, turns, now, t)
  t = t or fields(turns, 'woken', 'wakeups')
  local waited = now - count(t.woken)
  -- A wake-up from the future was sent by a clock that has gone back since.
  if t.woken ~= '' and waited >= 0 and waited < WAKE_AGAIN_MS * 2 ^ math.min(count(t.wakeups), WAKE_CAP) then
    return '0'
  end
  if held_back(ready) then return '0' end
  redis.call('HSET', turns, 'woken', now, 'wakeups', t.woken == '' and 0 or count(t.wakeups) + 1)
  return '1'
end

-- A tree with few ready runs has two in each turn: beside a large tree it waits for half as many runs as it has itself,
-- so that it takes less than twice as long as alone, what else it has to wait for included.
local FEW_TURNS = 16

-- Put a run that is queued among the ready ones, if it is not there. `given`: the turns that this call has read and written.
local function make_ready(ready, turns, run, root, priority, given)
  local rank = RANK[priority] or RANK.normal
  local known = ready .. ' ' .. rank .. ' ' .. root
  local at = given and given[known] or redis.call('HMGET', turns, 'at:' .. rank, rank .. ':' .. root)
  local present, last = count(at[1]), math.max(count(at[1]), count(at[2]))
  local turn = last + (last - present < FEW_TURNS and 0.5 or 1)
  if redis.call('ZADD', ready, 'NX', rank * 1e12 + turn, run) == 1 then
    redis.call('HSET', turns, rank .. ':' .. root, turn)
    at[2] = turn
  end
  if given then given[known] = at end
end

-- Remove a run from the ready ones. `place` has its score, and whether the agent has `others`, if it was taken by its turn,
-- else nil: nobody's turn moves. Returns whether the agent has more, and when its workers were last told, if that was read.
local function leave_ready(ready, turns, run, root, place)
  redis.call('ZREM', ready, run)
  if not (place and place.others) and redis.call('EXISTS', ready) == 0 then
    redis.call('DEL', turns)
    return false
  end
  if not place then return true end
  local rank = math.floor(place.score / 1e12)
  local turn = place.score - rank * 1e12
  local t = fields(turns, rank .. ':' .. root, 'woken', 'wakeups')
  redis.call('HSET', turns, 'at:' .. rank, turn)
  -- A tree that has nothing ready any more is not remembered.
  if count(t[rank .. ':' .. root]) == turn then redis.call('HDEL', turns, rank .. ':' .. root) end
  return true, t
end

-- Remove a run from the blocked ones of its tree: it was taken, or has ended. A key that somebody has spoilt hinders neither.
local function leave_blocked(key, run, root)
  local blocked = beside(key, 'blocked:' .. root)
  if redis.pcall('ZREM', blocked, run) == 1 and redis.call('EXISTS', blocked) == 0 then
    redis.pcall('SREM', beside(key, 'blocked'), root)
  end
end

-- Up to `room` blocked runs of a tree are ready again. Returns the agents of these whose workers are to be told.
local function unblock(key, root, room, now)
  local blocked, freed, woken = beside(key, 'blocked:' .. root), {}, {}
  while room > 0 do
    local id = redis.call('ZRANGE', blocked, 0, 0)[1]
    if not id then break end
    redis.call('ZREM', blocked, id)
    local fine, r = pcall(fields, beside(key, 'run:' .. id), 'state', 'session', 'not_before')
    -- One that waits for its next try becomes ready by the sweep, and what is damaged is looked at by it.
    if fine and r.state == 'queued' and count(r.not_before) <= now then
      local known, s = pcall(fields, beside(key, 'session:' .. r.session), 'agent', 'priority', 'run')
      if known and s.run == id then
        make_ready(beside(key, 'ready:' .. s.agent), beside(key, 'turns:' .. s.agent), id, root, s.priority)
        freed[s.agent] = true
        room = room - 1
      end
    end
  end
  if redis.call('EXISTS', blocked) == 0 then redis.call('SREM', beside(key, 'blocked'), root) end
  for agent in pairs(freed) do
    if must_wake(beside(key, 'ready:' .. agent), beside(key, 'turns:' .. agent), now) == '1' then
      woken[#woken + 1] = agent
    end
  end
  return woken
end

-- A run of the agent in the tree is at work no longer, or stands still in a call. Returns as `unblock`.
local function count_out(key, agent, root, now)
  count_one_less(key, 'agent:' .. agent, 'tree:' .. root)
  if redis.call('SISMEMBER', beside(key, 'blocked'), root) == 0 then return {} end
  -- include: limits
  local room = room_in_tree(key, root)
  return unblock(key, root, room and math.min(room, 1) or 1, now)
end
