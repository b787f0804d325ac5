-- include: ready
-- include: ends
-- How a worker takes a queued run, and what it gets. All of it is read, and the records that the ledger keeps
-- as JSON are looked into, before anything is written. A run with a record that cannot be read is taken to be failed by
-- that name; one with a key of another type could not even be ended, and is not taken.

-- The ids in a run's list of items; nil if it cannot be read.
local function ids_in(text)
  if not text or text == '' or text == '[]' then return {} end
  local fine, ids = pcall(cjson.decode, text)
  if not fine or type(ids) ~= 'table' then return nil end
  for _, id in pairs(ids) do
    if type(id) ~= 'string' then return nil end
  end
  return ids
end

-- Everything about a run, as its holder is told it: its session and itself as objects, and the keys of its session's
-- items and bodies. Raises what is of another type.
local function load_run(session, run, items, bodies)
  if not session.agent or not session.root then error({ err = 'ERR the session is damaged' }) end
  local load, ids = { session = session, run = run }, ids_in(run.items)
  load.records, load.texts = call_with('HMGET', items, ids or {}), call_with('HMGET', bodies, ids or {})
  for i, id in ipairs(ids or {}) do load.texts[i] = text_of(id, load.texts[i]) end
  load.own = redis.call('HMGET', bodies, 'prompt', 'state', 'task', 'memory')
  return load
end

-- What the definition of the worker that takes a run is written down as: a run has its version; a session has the one of
-- its first run, and goes along with later ones unless it was to refuse.
-- `known` is `<version> <on_deploy>`, or '' where nobody says.
local function note_version(load, known)
  local version, on_deploy = string.match(known or '', '^(%S+) (%S+)$')
  local s = load.session
  local before = s.version or ''
  if not version or (before ~= '' and s.on_deploy ~= 'latest') then return version or '', before, s.on_deploy or '' end
  return version, version, before == '' and on_deploy or s.on_deploy
end

-- The run `id` is at work from now on, under `claim`; `load` says so from then on, too.
local function hold(load, session, run, running, dispatch, id, claim, worker, now, known)
  local function set(key, facts, ...)
    local given = {...}
    for i = 1, #given, 2 do facts[given[i]] = tostring(given[i + 1]) end
    redis.call('HSET', key, ...)
  end
  local at = string.format('%.0f', now)
  local version, begun_with, on_deploy = note_version(load, known)
  check('ZCARD', running, dispatch)
  count_in(running, load.session.agent, load.session.root)
  redis.call('ZADD', running, now, id)
  redis.call('ZREM', dispatch, id)
  -- It may be blocked still: the sweep makes ready what is queued, and somebody may take it by its name.
  leave_blocked(running, id, load.session.root)
  set(run, load.run, 'state', 'running', 'claim', claim, 'lease_version', '0', 'worker', worker, 'started_ms', at,
    'dispatches', '0', 'standing', '0', 'attempt', string.format('%.0f', count(load.run.attempt) + 1), 'version', version)
  set(session, load.session, 'state', 'running', 'updated_ms', at, 'version', begun_with, 'on_deploy', on_deploy)
  changed('run', load.session.id, id, 'running', 'attempt=' .. load.run.attempt, 'worker=' .. worker)
  changed('session', load.session.id, '-', 'running')
end

-- What the holder of a run is told.
local function held(load)
  return { 'held', cjson.encode(load.session), cjson.encode(load.run), load.own[1], load.own[2], load.records, load.texts,
    load.own[3], load.own[4] }
end
