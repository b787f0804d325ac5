-- start: the router takes launches that the ledger knows: each is marked seen, its session's first run ready, it is
-- noted in its conversation and acknowledged. One whose records are damaged fails alone.
-- KEYS  1 queued
-- ARGV  1 request: group; look_ms until the sweep looks at a run; keep_ms: lifetime of a conversation; launches, a list of: session;
--         run: its id; message: its id; entry; seen, stream and conversation: keys without the shard; mark_ms that the mark lives;
--         recipient; digest; review_ms: when a review has to be done
-- Returns  for each launch  {'started', run, agent, cause, '1': tell workers of it | '0'} | {'already', run or ''} | {'duplicate'} | {'unknown'}
--          | {'over', state} | {'task'}: the session was launched by another message | {'other'}: its sender
--          has used its id for something else | {'error', what is wrong}; on the last three and 'unknown' nothing was
--          acknowledged
-- Complexity: O(launches).
-- include: base
-- include: request
-- include: new
-- include: mark
-- include: ready
local TIMERS = in_shard('timers')
local now = clock(q.now)
check('ZCARD', KEYS[1], TIMERS)
-- No group: its messages are acknowledged in the step that puts them into an inbox.
local group, due = q.group or '', now + (q.look_ms or 0)
-- What is the same for several launches is written once: entries by stream, launches by conversation, runs that begin.
local entries, notes, queued = {}, {}, {}
-- The ready runs that were looked at, and the turns that trees were given.
local checked, given = {}, {}
-- The agents whose workers were thought of: they are told once.
local asked = {}

local function start(l)
  local session, run, stream = session_key(l.session), in_shard('run:' .. l.run), in_shard(l.stream)
  local seen, conversation, runs = in_shard(l.seen), in_shard(l.conversation), session .. ':runs'
  local ready, turns = in_shard('ready:' .. l.recipient), in_shard('turns:' .. l.recipient)
  local id, message, entry, mark_ms, recipient, digest = l.run, l.message, l.entry, l.mark_ms, l.recipient, l.digest
  local s = fields(session, 'id', 'agent', 'state', 'run', 'runs', 'message', 'root', 'priority')
  checked[ready] = checked[ready] or { redis.call('ZCARD', ready), redis.call('HLEN', turns) }
  check('LLEN', runs)
  local noted, wrong = false, s.id == '' and 'unknown' or s.message ~= message and 'task' or nil
  if wrong or not redis.call('SET', seen, entry .. ' ' .. digest, 'NX', 'PX', mark_ms) then
    local standing = marked(seen, entry, digest)
    if standing == 'other' then return { 'other' } end
    if standing == 'duplicate' then
      add(entries, stream, entry)
      return { 'duplicate' }
    end
    if wrong then return { wrong } end
    mark(seen, entry, digest, mark_ms)
    -- Sent twice: its agent may have been given another session since.
    noted = redis.call('HEXISTS', conversation, 'launch:' .. message) == 1
  end
  -- Also of a session that has ended, for messages that name it or wait for it.
  if not noted then add(notes, conversation, 'begun', '1', 'launch:' .. message, s.id, 'agent:' .. recipient, s.id) end
  if s.state ~= 'pending' then
    add(entries, stream, entry)
    return { 'over', s.state }
  end
  local answer = { 'started', id, s.agent, 'start' }
  if s.run ~= '' or count(s.runs) > 0 then
    local queued = s.run ~= '' and redis.call('HGET', run, 'state') == 'queued'
    -- Sent again, as its answer was lost: the caller has told nobody.
    answer = queued and { 'started', s.run, s.agent, 'start', '1' } or { 'already', s.run }
  else
    new_run(run, runs, id, s.id, 1, 'start', {}, now)
    redis.call('HSET', session, 'run', id, 'runs', 1, 'updated_ms', now)
    queued[#queued + 1], queued[#queued + 2] = due, id
    if l.review_ms then end_by(TIMERS, session, s.id, 'review', l.review_ms) end
    make_ready(ready, turns, id, s.root, s.priority, given)
    answer[5] = asked[ready] and '0' or must_wake(ready, turns, now)
    asked[ready] = true
  end
  add(entries, stream, entry)
  return answer
end

local answers, refused = {}, nil
for n, launch in ipairs(q.launches) do
  local fine, answer = pcall(start, launch)
  if not fine then
    -- Without the place in the script that some servers put before it.
    local what = type(answer) == 'table' and answer.err or tostring(answer)
    what = string.match(what, '%f[%u]%u%u+ .*') or what
    -- Whatever else the server has against it, it has against all of them.
    if not string.find(what, '^WRONGTYPE') then
      refused = redis.error_reply(what)
      break
    end
    answer = { 'error', what }
  end
  answers[n] = answer
end
call_with('ZADD', KEYS[1], queued)
if refused then return refused end
for conversation, launches in pairs(notes) do
  redis.pcall('HSET', conversation, unpack(launches))
  redis.pcall('PEXPIRE', conversation, q.keep_ms)
end
for stream, ids in pairs(entries) do redis.call('XACK', stream, group, unpack(ids)) end
return answers
