-- route_answer: the system itself answers what a program outside of the stack asks: the reply is published in one step
-- with the mark and the acknowledgement. Nothing in the ledger changes.
-- KEYS  1 totals
-- ARGV  1 request: mark (see lib/mark.lua); stream: of the reply  2 reply
-- Returns  {'done'} | {'duplicate'} | {'other'}: its id is another message's; nothing was acknowledged then
-- Complexity: O(1).
-- include: base
-- include: mark
local answer, applied = answered(q.mark)
if answer then return answer end
-- The same entry comes again where it is for a program and its router died before it was in the inbox.
if not applied then publish(in_shard(q.stream), KEYS[1], ARGV[2]) end
accept(q.mark)
return { 'done' }
