-- Scripts: what they may use, how they call commands, and what their errors say. As in Valkey 9; the place in an error's text is
-- the same, too, unless the call is the last thing that a function returns, which Lua forgets.
local server = ...
local commands, fail, least, most, parts = server.commands, server.fail, server.least, server.most, server.parts
local select, type, upper = select, type, string.upper
local getinfo = debug.getinfo

local scripts = {}
local redis = {}

-- --- what a script calls --------------------------------------------------------------------------

local function text_of(value)
  if type(value) == 'string' then return value end
  if type(value) ~= 'number' then fail('ERR Command arguments must be strings or integers') end
  return server.number(value)
end
-- What a script may not call, or what this server has not.
local REFUSED = { MULTI = true, EXEC = true, WATCH = true, EVAL = true, EVALSHA = true, SCRIPT = true, CLIENT = true }

-- The command of this name.
local function command_of(name)
  if name == nil then fail('ERR Please specify at least one argument for this call') end
  name = upper(text_of(name))
  if REFUSED[name] then fail('ERR This command is not allowed from script') end
  return commands[name] or fail("ERR the simulated server has no command '" .. name .. "'"), name
end

local function call(...)
  local name, a, b, c = ...
  local run = commands[name]
  if not run then run, name = command_of(name) end
  local n = select('#', ...)
  if n < least[name] or n > most[name] or parts[name] and server.misfit(name, n, a) then
    fail('ERR Wrong number of args calling command from script')
  end
  if n > 4 then
    local words = { ... }
    for i = 2, n do
      if type(words[i]) ~= 'string' then words[i] = text_of(words[i]) end
    end
    return run(unpack(words, 2, n))
  end
  -- Most calls have few arguments, and need no table on their way.
  if n > 1 and type(a) ~= 'string' then a = text_of(a) end
  if n > 2 and type(b) ~= 'string' then b = text_of(b) end
  if n > 3 and type(c) ~= 'string' then c = text_of(c) end
  if n == 3 then return run(a, b) elseif n == 4 then return run(a, b, c) elseif n == 2 then return run(a) end
  return run()
end
redis.call = call

function redis.pcall(...)
  local done, answer = pcall(call, ...)
  if done then return answer end
  return type(answer) == 'table' and answer or { err = 'ERR ' .. tostring(answer) }
end
function redis.error_reply(text)
  if type(text) ~= 'string' then return { err = 'ERR wrong number or type of arguments' } end
  if string.sub(text, 1, 1) == '-' then text = string.sub(text, 2) end
  return { err = string.find(text, ' ') and text or 'ERR ' .. text }
end
function redis.status_reply(text) return { ok = text } end
function redis.log() end
redis.LOG_DEBUG, redis.LOG_VERBOSE, redis.LOG_NOTICE, redis.LOG_WARNING = 0, 1, 2, 3

-- An error that is a table with its text comes as that text.
local function unwrapped(done, ...)
  local answer = ...
  if not done and type(answer) == 'table' and type(answer.err) == 'string' then return false, answer.err end
  return done, ...
end

local function refuse_new() error('Attempt to modify a readonly table', 2) end
setmetatable(redis, { __newindex = refuse_new })
setmetatable(server.cjson, { __newindex = refuse_new })

-- The variables of scripts; KEYS and ARGV are those of the script that runs.
local variables = { redis = redis, server = redis, cjson = server.cjson, KEYS = {}, ARGV = {} }
for _, name in ipairs({ 'string', 'table', 'math', 'pairs', 'ipairs', 'next', 'type', 'tonumber', 'tostring', 'unpack', 'select',
  'error', 'xpcall', 'assert', 'setmetatable', 'getmetatable', 'rawget', 'rawset', 'rawequal' }) do
  variables[name] = _G[name]
end
variables._G = variables
variables.pcall = function(...) return unwrapped(pcall(...)) end
setmetatable(variables, {
  __index = function(_, name) error("Script attempted to access nonexistent global variable '" .. tostring(name) .. "'", 2) end,
  __newindex = refuse_new,
})

-- --- calls ----------------------------------------------------------------------------------------

-- The text of an error, with the line of the script in which it happened.
local function placed(problem)
  local line, level = 1, 2
  while true do
    local info = getinfo(level, 'Sl')
    if not info then break end
    if info.source == '@user_script' then
      line = info.currentline
      break
    end
    level = level + 1
  end
  if type(problem) == 'table' then problem = problem.err or 'ERR unknown error' else problem = 'ERR ' .. tostring(problem) end
  return { err = problem .. ' script: on @user_script:' .. line .. '.' }
end

function server.load(sha, text)
  local script, problem = loadstring(text, '@user_script')
  if not script then return 'ERR Error compiling script (new function): ' .. problem end
  scripts[sha] = setfenv(script, variables)
end

function server.run(sha, numkeys, ...)
  local keys = server.integer(numkeys)
  local words = { ... }
  local n = #words
  if keys > n then fail("ERR Number of keys can't be greater than number of args") end
  if keys < 0 then fail("ERR Number of keys can't be negative") end
  local KEYS, ARGV = {}, {}
  for i = 1, keys do KEYS[i] = words[i] end
  for i = keys + 1, n do ARGV[i - keys] = words[i] end
  variables.KEYS, variables.ARGV = KEYS, ARGV
  local _, answer = xpcall(scripts[sha], placed)
  return answer
end
