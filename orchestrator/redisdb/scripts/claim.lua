-- claim: a worker takes a certain queued run under a random claim id, unless its agent is paused, or its agent or
-- its tree is at its limit. The same claim id, sent twice, is one claim.
-- KEYS  1 session
-- ARGV  1 request: run; claim: its id; worker; version and on_deploy of its definition, with a space between
-- Returns  {'held', session as a JSON object, run likewise, prompt, saved state, {record of each item}, {text of each},
--           its task beside the prompt as JSON, or nil, the reference to its memory as JSON, or nil}
--          | {'refused', state of the run, or why it may not be taken now}
-- Complexity: O(items that the run carries).
-- include: base
-- include: request
-- include: claim
local RUN, RUNNING, QUEUED = in_shard('run:' .. q.run), in_shard('running'), in_shard('queued')
local now = clock(q.now)
local r = fields(RUN, 'state', 'claim', 'not_before')
if r.state == '' then return { 'refused', 'unknown' } end
local again = r.state == 'running' and r.claim == q.claim
if not again and r.state ~= 'queued' then return { 'refused', r.state } end
local s = fields(KEYS[1], 'run', 'root', 'agent')
local READY, TURNS = in_shard('ready:' .. s.agent), in_shard('turns:' .. s.agent)
if not again and s.run ~= q.run then return { 'refused', 'superseded' } end
if not again and count(r.not_before) > now then return { 'refused', 'waiting' } end
if not again and held_back(READY) then return { 'refused', held_back(READY) } end
if not again and (room_in_tree(RUNNING, s.root) or 1) <= 0 then return { 'refused', 'limit' } end
local fine, load = pcall(function() return load_run(object(KEYS[1]), object(RUN), KEYS[1] .. ':items', KEYS[1] .. ':bodies') end)
if not fine then
  return redis.error_reply(type(load) == 'table' and load.err .. ', of run ' .. q.run or tostring(load))
end
if not again then
  leave_ready(READY, TURNS, q.run, load.session.root)
  hold(load, KEYS[1], RUN, RUNNING, QUEUED, q.run, q.claim, q.worker, now, q.version)
end
return held(load)
