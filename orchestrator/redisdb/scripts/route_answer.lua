-- route_answer: the system itself answers what a program outside of the stack asks: the reply is published in one step
-- with the mark and the acknowledgement. Nothing in the ledger changes.
-- KEYS  1 seen mark  2 stream of the entry  3 conversation  4 stream of the reply  5 totals
-- ARGV  1 group  2 entry id  3 mark's lifetime in ms  4 digest  5 lifetime of a conversation in ms  6 reply
-- Returns  {'done'} | {'duplicate'} | {'other'}: its id is another message's; nothing was acknowledged then
-- Complexity: O(1).
-- include: base
-- include: mark
local answer, own = answered(KEYS[1], KEYS[2], ARGV[1], ARGV[2], ARGV[4])
if answer then return answer end
-- The same entry comes again where it is for a program and its router died before it was in the inbox.
if not own then publish(KEYS[4], KEYS[5], ARGV[6]) end
redis.call('PEXPIRE', KEYS[3], ARGV[5])
accept(KEYS[1], KEYS[2], ARGV[1], ARGV[2], ARGV[4], ARGV[3])
return { 'done' }
