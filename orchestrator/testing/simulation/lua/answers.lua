-- What Python calls. A text, a number and nil are answered as they are; behind anything else stands how to read it:
-- 1 for a list, in RESP2, and 2 for the text of an error. A list of texts and nothings, as most are, comes as they are behind a 3.
local server = ...
local commands = server.commands
local concat, gsub, plain, type = table.concat, string.gsub, server.plain, type

-- What stands before a text of this length; most are short.
local BULK = setmetatable({}, { __index = function(known, size)
  local front = '$' .. size .. '\r\n'
  if size < 1000 then known[size] = front end
  return front
end })
local END = '\r\n'

local function whole(n) return n < 0 and math.ceil(n) or math.floor(n) end

-- Appends an answer behind the `n` parts so far; how many parts there are then.
local function append(parts, n, value)
  local kind = type(value)
  if kind == 'string' then
    parts[n + 1], parts[n + 2], parts[n + 3] = BULK[#value], value, END
    return n + 3
  elseif kind == 'table' then
    local problem, status = rawget(value, 'err'), rawget(value, 'ok')
    if problem then parts[n + 1] = '-' .. gsub(problem, '[\r\n]', ' ') .. END
    elseif status then parts[n + 1] = '+' .. gsub(status, '[\r\n]', ' ') .. END
    else
      local size, front = 0, n + 1
      n = front
      for _, part in ipairs(value) do
        size = size + 1
        if type(part) == 'string' then  -- as most are
          parts[n + 1], parts[n + 2], parts[n + 3] = BULK[#part], part, END
          n = n + 3
        else
          n = append(parts, n, part)
        end
      end
      parts[front] = '*' .. size .. END
      return n
    end
  elseif kind == 'number' then parts[n + 1] = ':' .. plain(whole(value)) .. END
  elseif value == true then parts[n + 1] = ':1\r\n'
  else parts[n + 1] = '$-1\r\n' end
  return n + 1
end

-- How many texts and nothings a list is made of; 0: it holds something else, or is long.
local function texts(list)
  for i = 1, 200 do
    local part = rawget(list, i)
    if part == nil then return i - 1 end
    if part and type(part) ~= 'string' then return 0 end
  end
  return 0
end

local function answered(done, answer)
  local kind = type(answer)
  if not done then
    -- An error of this server, and none that a command has: nobody may take it for an answer.
    if kind ~= 'table' or not answer.err then error(answer, 0) end
    return answer.err, 2
  end
  if kind == 'string' then return answer
  elseif kind == 'number' then return whole(answer)
  elseif kind == 'table' then
    local problem, status = rawget(answer, 'err'), rawget(answer, 'ok')
    if problem then return (gsub(problem, '[\r\n]', ' ')), 2 elseif status then return status end
    local n = texts(answer)
    if n > 0 then return 3, unpack(answer, 1, n) end
    local parts = {}
    return concat(parts, '', 1, append(parts, 0, answer)), 1
  elseif answer == true then return 1 end
  return nil
end

return {
  command = function(name, ...)
    local run = commands[name]
    if not run then return "ERR the simulated server has no command '" .. name .. "'", 2 end
    local misfit = server.misfit(name, select('#', ...) + 1, ...)
    if misfit then return "ERR wrong number of arguments for '" .. string.lower(misfit) .. "' command", 2 end
    return answered(pcall(run, ...))
  end,
  load = server.load,
  run = function(...) return answered(pcall(server.run, ...)) end,
  set_time = function(us) server.now_us, server.now_ms = us, math.floor(us / 1000) end,
  added = function() return server.added end,
  added_to = server.added_to,
  copy = server.copy,
  restore = server.restore,
  changed = function() return answered(true, server.changed()) end,
}
