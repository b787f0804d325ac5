-- What Python calls. A text, a number and nil are answered as they are; behind anything else stands how to read it:
-- 1 for a list, in RESP2, and 2 for the text of an error.
local server = ...
local commands = server.commands
local concat, gsub, plain, type = table.concat, string.gsub, server.plain, type

local append
local function append_table(parts, value)
  if value.err then parts[#parts + 1] = '-' .. gsub(value.err, '[\r\n]', ' ') .. '\r\n'
  elseif value.ok then parts[#parts + 1] = '+' .. gsub(value.ok, '[\r\n]', ' ') .. '\r\n'
  else
    local n = 0
    while value[n + 1] ~= nil do n = n + 1 end
    parts[#parts + 1] = '*' .. n .. '\r\n'
    for i = 1, n do append(parts, value[i]) end
  end
end
local function whole(n) return n < 0 and math.ceil(n) or math.floor(n) end
function append(parts, value)
  local kind = type(value)
  if kind == 'string' then parts[#parts + 1] = '$' .. #value .. '\r\n' .. value .. '\r\n'
  elseif kind == 'table' then append_table(parts, value)
  elseif kind == 'number' then parts[#parts + 1] = ':' .. plain(whole(value)) .. '\r\n'
  elseif value == true then parts[#parts + 1] = ':1\r\n'
  else parts[#parts + 1] = '$-1\r\n' end
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
    if answer.err then return (gsub(answer.err, '[\r\n]', ' ')), 2 elseif answer.ok then return answer.ok end
    local parts = {}
    append_table(parts, answer)
    return concat(parts), 1
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
  copy = server.copy,
  restore = server.restore,
}
