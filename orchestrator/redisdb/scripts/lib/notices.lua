-- What people who are not looking are told of, see `orchestrator.notifier`: a stream beside the keys of the shard. It is
-- there from the moment on when a notifier first ran; without one nobody is told, and nothing is kept.

-- Entries that are kept while no notifier reads them, about.
local MOST_NOTICES = 100000
-- Characters of a reason that go with one.
local NOTICE_CHARS = 1000

-- `event` has happened to a session; `about` is the question or the callback concerned, or ''. `key` is any declared key.
local function notice(key, event, session, about, reason)
  local stream = beside(key, 'notices')
  if redis.call('TYPE', stream).ok ~= 'stream' then return end
  redis.call('XADD', stream, 'MAXLEN', '~', MOST_NOTICES, '*', 'event', event, 'session', session, 'about', about,
    'reason', string.sub(reason, 1, NOTICE_CHARS))
end
