-- converse: count a message of a conversation before it is acted upon.
-- KEYS  1 conversation
-- ARGV  1 first message of its chain  2 most messages or 0  3 lifetime of the conversation in ms
-- Returns  '' | 'chain' | 'limit'
-- Complexity: O(1).
-- include: conversation
return converse(KEYS[1], ARGV[1], tonumber(ARGV[2]), ARGV[3])
