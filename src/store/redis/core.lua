-- The limits' arithmetic, as far as a store needs it: the mirror of src/limit. Both scripts begin
-- with this. Scripts decide and write; what callers are told is worked out by the gateway from the
-- states that it is handed, by the very functions that the memory store uses.
--
-- Numbers are doubles, exact below 2^53. Moments are microseconds since 1970.

local BUCKET, FIXED, SLIDING, LOG, CONCURRENCY, LEAKY, CALENDAR = 0, 1, 2, 3, 4, 5, 6
local STATE = '<BdI4I4'    -- kind, stamp, used, carry
local LAYER = '<BBI4I4ddddd' -- algorithm, flags, cost, what of it is taken now, five numbers of the algorithm
local MOST = 4294967295    -- tokens that a state can count
local floor, ceil, min, max = math.floor, math.ceil, math.min, math.max
local call, pack, unpack_bytes = redis.call, struct.pack, struct.unpack

-- The store's clock, unless a test brings its own.
local given = tonumber(ARGV[1])
local now = given
if not now then
  local time = call('TIME')
  now = time[1] * 1000000 + time[2]
end

-- (a*b + c) / d, and the remainder, exactly. Where the product is too large for a double it is
-- divided digit by digit, b in digits of seven bits: b < 2^32, d < 2^45.
local function divide(a, b, c, d)
  local product = a * b + c
  if product < 9007199254740992 then
    local quotient = floor(product / d)
    return quotient, product - quotient * d
  end
  local whole = floor(a / d)
  local rest = a - whole * d
  local quotient, left, unit = 0, 0, 268435456
  while unit >= 1 do
    left = left * 128 + rest * (floor(b / unit) % 128)
    local digit = floor(left / d)
    left = left - digit * d
    quotient = quotient * 128 + digit
    unit = unit / 128
  end
  left = left + c
  local digit = floor(left / d)
  return whole * b + quotient + digit, left - digit * d
end

-- The same use as another algorithm counts it.
local function read_as(kind, was, used, carry)
  if was == kind then return used, carry end
  if was == CONCURRENCY or kind == CONCURRENCY then return 0, 0 end
  if was == SLIDING then used = min(used + carry, MOST) end
  return used, 0
end

-- When the window of a moment begins and ends. Calendars are the gateway's: it sends the bounds of
-- the windows around its own now, and the store's clock picks.
local function window_of(algorithm, moment, a, b, c, d)
  if algorithm == FIXED then
    local start = moment - moment % a
    return start, start + a
  end
  if moment < b then return a, b end
  if moment < c then return b, c end
  return c, d
end

-- The state as of now: what has come back by then is back. The numbers of an algorithm, a to e:
--   bucket: size, count, window · leaky: the same, and the longest wait
--   fixed: count, window · calendar: count, four bounds · sliding and log: count, window
local function advance(algorithm, stamp, used, carry, a, b, c, d, e)
  if algorithm == BUCKET or algorithm == LEAKY then
    if used == 0 then return now, 0, 0 end
    carry = min(carry, b - 1)
    local back, rest = divide(max(now - stamp, 0), b, carry, c)
    if back == 0 then return stamp, used, carry end
    if back >= used then return max(now, stamp), 0, 0 end
    return now - floor(rest / b), used - back, rest % b
  end
  if algorithm == SLIDING then
    local moment = (used == 0 and carry == 0) and now or max(now, stamp)
    local passed = floor(moment / b) - floor(stamp / b)
    if passed <= 0 then return moment, used, carry end
    if passed == 1 then return moment, 0, used end
    return moment, 0, 0
  end
  local moment = used == 0 and now or max(now, stamp)
  if stamp < window_of(algorithm, moment, b, c, d, e) then used = 0 end
  return moment, used, 0
end

-- How many tokens there are; the state is as of now.
local function room_of(algorithm, stamp, used, carry, a, b, c, d)
  if algorithm == LEAKY then
    local in_time = divide(max(now - stamp, 0) + d, b, carry, c)
    a = min(a, min(in_time, MOST) + 1)
  elseif algorithm == SLIDING then
    local weight, rest = divide(b - stamp % b, carry, 0, b)
    if rest > 0 then weight = weight + 1 end
    used = used + weight
  end
  return max(a - used, 0)
end

-- Until it is whole again, in milliseconds, rounded up: as long as a key has to live.
local function life(algorithm, stamp, used, a, b, c, d, e)
  local moment
  if algorithm == BUCKET or algorithm == LEAKY then
    moment = stamp + used * c / b
  elseif algorithm == SLIDING then
    moment = (floor(stamp / b) + 2) * b
  else
    local _, finish = window_of(algorithm, stamp, b, c, d, e)
    moment = finish
  end
  local millis = min(max(ceil((moment - now) / 1000) + 1, 1), 4503599627370496)
  -- A test's clock stands still while the store's goes on.
  if given then millis = max(millis, 3600000) end
  return millis
end

-- What an algorithm counts in.
local KINDS = { [0] = BUCKET, FIXED, SLIDING, LOG, CONCURRENCY, BUCKET, FIXED }

-- Logs and requests in flight: what they need is made only where it is needed, since a script is
-- run from its first line for every decision.
local function rarely()
  -- A log is a sorted set. An admission's moment is its score, its name is <number>:<cost>. Two more
  -- members have scores of at most zero: 't' is minus the sum of all costs, 's' minus the last number.
  local function log_cost(member)
    return tonumber(string.match(member, ':(%d+)$'))
  end

  -- What numbers remain of a log for an algorithm that keeps none.
  local function log_summary(key)
    local last, total = call('ZREVRANGE', key, 0, 0, 'WITHSCORES'), call('ZSCORE', key, 't')
    if not total or tonumber(last[2]) <= 0 then return 0, 0 end
    return tonumber(last[2]), -tonumber(total)
  end

  -- A log as it is now: the moment that counts, what is used, and how to write it.
  local function log_load(key, raw, window)
    local log = { used = 0, newest = now, at = now, gone = 0 }
    local last = not raw and redis.pcall('ZREVRANGE', key, 0, 0, 'WITHSCORES') or { err = true }
    if last.err or last[1] and not call('ZSCORE', key, 't') then
      -- Another algorithm counted until now.
      log.foreign = true
      if raw then
        local kind, stamp, used, carry = unpack_bytes(STATE, raw)
        used = read_as(LOG, kind, used, carry)
        if used > 0 then
          log.at, log.newest = max(now, stamp), stamp
          if stamp > log.at - window then log.used, log.first = used, stamp end
        end
      end
      return log
    end
    if last[1] and tonumber(last[2]) > 0 then
      log.newest = tonumber(last[2])
      log.at = max(now, log.newest)
      log.used = -tonumber(call('ZSCORE', key, 't'))
      for _, member in ipairs(call('ZRANGEBYSCORE', key, '(0', log.at - window)) do
        log.gone = log.gone + log_cost(member)
      end
      log.used = log.used - log.gone
    end
    return log
  end

  local function log_take(key, log, cost, window)
    if log.foreign then
      call('DEL', key)
      if log.first then call('ZADD', key, log.first, '0:' .. string.format('%d', log.used)) end
    elseif log.gone > 0 then
      call('ZREMRANGEBYSCORE', key, '(0', log.at - window)
    end
    local number = string.sub(call('ZINCRBY', key, -1, 's'), 2)
    call('ZADD', key, log.at, number .. ':' .. string.format('%d', cost), -(log.used + cost), 't')
    call('PEXPIRE', key, life(BUCKET, log.at + window, 0, 0, 1, 1))
  end

  -- Requests in flight: a sorted set of them, each counting until its score. Their gateway puts that
  -- off as long as it lives and they last; what a dead one had is free by itself.
  local function flying(key)
    local count = redis.pcall('ZCOUNT', key, string.format('(%.0f', now), '+inf')
    if type(count) == 'table' then return 0 end
    return count
  end

  local function fly(key, flight, count, lease)
    if call('TYPE', key).ok ~= 'zset' or call('ZSCORE', key, 't') then call('DEL', key) end
    call('ZREMRANGEBYSCORE', key, '-inf', now)
    for i = 1, count do call('ZADD', key, now + lease, flight .. '.' .. i) end
    call('PEXPIRE', key, ceil(lease / 1000))
  end

  return {
    log_cost = log_cost,
    log_summary = log_summary,
    log_load = log_load,
    log_take = log_take,
    flying = flying,
    fly = fly,
  }
end

-- A state in numbers, as of when it was written.
local function load(key, raw)
  if raw then return unpack_bytes(STATE, raw) end
  if call('TYPE', key).ok == 'zset' then
    local stamp, used = rarely().log_summary(key)
    return LOG, stamp, used, 0
  end
  return BUCKET, 0, 0, 0
end
