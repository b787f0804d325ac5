-- claim: a worker takes a certain queued run under a random claim id, unless its agent is paused, its agent or
-- its tree is at its limit, or its session is pinned to another version of the agent. The same claim id, sent twice, is one claim.
-- KEYS  1 session  2 run  3 running  4 queued  5 items  6 bodies  7 ready  8 turns
-- ARGV  1 now or ''  2 run id  3 claim id  4 worker  5 version and on_deploy of its definition, with a space between, or ''
-- Returns  {'held', session as a JSON object, run likewise, prompt, saved state, {record of each item}, {text of each},
--           its task beside the prompt as JSON, or nil, the reference to its memory as JSON, or nil}
--          | {'refused', state of the run, or why it may not be taken now}
-- Complexity: O(items that the run carries).
-- include: base
-- include: claim
local now = clock(ARGV[1])
local r = fields(KEYS[2], 'state', 'claim', 'not_before')
if r.state == '' then return { 'refused', 'unknown' } end
local again = r.state == 'running' and r.claim == ARGV[3]
if not again and r.state ~= 'queued' then return { 'refused', r.state } end
local s = fields(KEYS[1], 'run', 'version', 'on_deploy', 'root')
if not again and s.run ~= ARGV[2] then return { 'refused', 'superseded' } end
if not again and version_of(s) ~= '' and version_of(s) ~= string.match(ARGV[5], '^%S*') then
  return { 'refused', 'version' }
end
if not again and count(r.not_before) > now then return { 'refused', 'waiting' } end
if not again and held_back(KEYS[7]) then return { 'refused', held_back(KEYS[7]) } end
if not again and (room_in_tree(KEYS[3], s.root) or 1) <= 0 then return { 'refused', 'limit' } end
local fine, load = pcall(function() return load_run(object(KEYS[1]), object(KEYS[2]), KEYS[5], KEYS[6]) end)
if not fine then
  return redis.error_reply(type(load) == 'table' and load.err .. ', of run ' .. ARGV[2] or tostring(load))
end
if not again then
  local ready, turns = in_lane(KEYS[7], KEYS[8], s)
  leave_ready(ready, turns, ARGV[2], load.session.root)
  hold(load, KEYS[1], KEYS[2], KEYS[3], KEYS[4], ARGV[2], ARGV[3], ARGV[4], now, ARGV[5])
end
return held(load)
