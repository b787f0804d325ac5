-- New sessions and runs.

-- A new session gets a budget: `limits` names what is limited and its limit, in turn.
local function set_budget(budget, limits)
  for what, limit in string.gmatch(limits, '(%a+) (%d+)') do redis.call('HSET', budget, 'limit:' .. what, limit) end
end

-- The record of a run that is queued and carries the items `ids`.
local function write_run(key, id, session, number, cause, ids, now)
  redis.call('HSET', key, 'id', id, 'session', session, 'number', number, 'cause', cause, 'state', 'queued',
    'claim', '', 'lease_version', 0, 'attempt', 0, 'failures', 0, 'lost', 0, 'items', #ids > 0 and cjson.encode(ids) or '[]',
    'worker', '', 'created_ms', now, 'started_ms', 0, 'ended_ms', 0, 'stop', '', 'reason', '', 'dispatches', 1)
  changed('run', session, id, 'queued', cause)
end

-- A run is queued that carries the items `ids`; `runs` is the list of the runs of its session.
local function new_run(key, runs, id, session, number, cause, ids, now)
  write_run(key, id, session, number, cause, ids, now)
  redis.call('RPUSH', runs, id)
end
