-- drop_leftovers: what a run set aside and recorded goes, as far as it is not at work any more: its reservations unless
-- it is running, the journal of its steps unless it is running or queued. The doctor asks for it; `recount_reserved`
-- puts right what the budgets say then.
-- KEYS  1 run
-- ARGV  none
-- Returns  how many keys went
-- Complexity: O(steps that the run recorded).
-- include: base
-- include: steps
local fine, r = pcall(fields, KEYS[1], 'id', 'state')
if not fine then return 0 end
local gone = 0
if r.state ~= 'running' then gone = redis.call('UNLINK', KEYS[1] .. ':reserved') end
if r.state ~= 'running' and r.state ~= 'queued' then
  gone = gone + redis.call('EXISTS', KEYS[1] .. ':steps')
  -- A run that is gone is not made again.
  if r.id == '' then redis.call('UNLINK', KEYS[1] .. ':steps') else drop_steps(KEYS[1]) end
end
return gone
