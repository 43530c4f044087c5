-- What wrk sends: the same head to every contestant, and whatever the scenario asks for.
-- Arguments come in pairs: method, body (bytes), pause (ms between a connection's requests, on
-- average: a pause is random, or all connections would come in the same millisecond), callers (how
-- many users and addresses to pretend to be), walk or roam (each in turn, or any), first (where to
-- begin to count).
local given = { callers = 1, first = 0 }

local function address(n)
   return string.format("%d.%d.%d.%d", 11 + math.floor(n / 16777216), math.floor(n / 65536) % 256,
      math.floor(n / 256) % 256, n % 256)
end

function init(arguments)
   for at = 1, #arguments, 2 do
      given[arguments[at]] = tonumber(arguments[at + 1]) or arguments[at + 1]
   end
   wrk.method = given.method or "GET"
   wrk.headers["X-User-Id"] = "ada"
   wrk.headers["X-Api-Key"] = "bench-key"
   if given.body then wrk.body = string.rep("x", given.body) end
   if given.pause then
      function delay() return math.random(1, 2 * given.pause - 1) end
   end
   if given.walk then
      -- Every caller once, in turn.
      local n = given.first
      function request()
         n = n + 1
         wrk.headers["X-User-Id"] = "user-" .. n
         wrk.headers["X-Forwarded-For"] = address(n)
         return wrk.format()
      end
   elseif given.roam then
      -- Any of them.
      math.randomseed(4711)
      function request()
         local n = math.random(given.callers)
         wrk.headers["X-User-Id"] = "user-" .. n
         wrk.headers["X-Forwarded-For"] = address(n)
         return wrk.format()
      end
   end
end

function done(summary, latency)
   local errors = summary.errors
   io.write(string.format(
      '\n@ {"requests":%d,"micros":%d,"bytes":%d,"refused":%d,"failed":%d,"p50":%d,"p99":%d}\n',
      summary.requests, summary.duration, summary.bytes, errors.status,
      errors.connect + errors.read + errors.write + errors.timeout,
      latency:percentile(50), latency:percentile(99)))
end
