-- tell_again: a session says that its parent was told of its end, and the parent still counts that as owed. Where it has
-- ended, the parent is told now; where it has not, it will be.
-- KEYS  1 session
-- ARGV  1 request: status: how the parent is told of an answer, completed | partial-success
-- Returns  {'told'} | {'unsaid'}: it has not ended | {'nothing'}: nothing is owed, or its text is gone
-- include: base
-- include: termination
local now = clock(q.now)
local s = session_facts()
callback = s.parent ~= '' and item(P_ITEMS, callback_of(s)) or nil
if not callback or callback.state ~= 'owed' then return { 'nothing' } end
local more = fields(S, 'ended_ms', 'proof', 'report', 'attachments')
if not CLOSED[s.state] and s.state ~= 'finished' and count(more.ended_ms) == 0 then
  redis.call('HDEL', S, 'parent_notified')
  return { 'unsaid' }
end
local said = redis.call('HMGET', BODIES, 'result', 'whole', 'end', callback_of(s))
local text = said[1] or said[4]
if not text then return { 'nothing' } end
local function decoded(text) return text and text ~= '' and cjson.decode(text) or nil end
local whole, attachments = decoded(said[2]), decoded(more.attachments)
END.body, END.message = said[3] or '', more.report
tell_parent(s, CLOSED[s.state] and 'failed' or q.status, text, now, more.proof, whole, attachments)
session_stop(s, s.state)
return { 'told' }
