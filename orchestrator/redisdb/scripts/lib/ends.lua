-- What a child said at the end that its parent was told of stands in the child's texts, under the id of the callback, and
-- nowhere else: what the child says later, to a user who resumes it, does not touch it. The texts of a deleted child go, and
-- its parent has that one then.
local function callback_of(s) return 'cb_' .. string.sub(s.id, 5) end

-- The text of an item that stands in the records of its session under `text`, if that is there, else in its child's.
local function text_of(id, text)
  if text or string.sub(id, 1, 3) ~= 'cb_' then return text end
  local said = redis.pcall('HGET', session_key('ses_' .. string.sub(id, 4)) .. ':bodies', id)
  return type(said) == 'string' and said
end
