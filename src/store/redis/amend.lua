-- What happens to a counter after the decision: places are given back, costs are settled, what was
-- admitted while the store was away is charged.
--
-- KEYS: the counter.
-- ARGV: the time (a test's, or nothing), the gateway's, the limit's LAYER, what to do, and what that
-- needs. The layer's cost is what was taken.

local key, change = KEYS[1], ARGV[4]
local algorithm, flags, cost, _, a, b, c, d, e = unpack_bytes(LAYER, ARGV[3])
local rare = rarely()

-- What is known here of the limit may be old: a key never lives shorter for it.
local function save(kind, stamp, used, carry)
  local millis = max(life(algorithm, stamp, used, a, b, c, d, e), call('PTTL', key))
  call('SET', key, pack(STATE, kind, stamp, used, carry), 'PX', millis)
end

-- Tokens used, when an admission is counted by its actual cost.
local function applied(used, actual)
  return max(min(used + actual, MOST) - cost, 0)
end

local changes = {}

-- A request in flight has ended.
function changes.land()
  for i = 1, cost do redis.pcall('ZREM', key, ARGV[5] .. '.' .. i) end
end

-- These are still in flight. What the store has forgotten it is told anew.
function changes.beat()
  local kind = call('TYPE', key).ok
  if kind ~= 'none' and (kind ~= 'zset' or call('ZSCORE', key, 't')) then return end
  for flight in string.gmatch(ARGV[5], '%S+') do call('ZADD', key, now + b, flight) end
  call('PEXPIRE', key, ceil(b / 1000))
end

-- Nothing: can it be written to?
function changes.probe()
  call('SET', key, '', 'PX', 1000)
end

-- The last place in a queue is free again; whoever left another one is closed up on as time goes by.
function changes.leave()
  local raw = call('GET', key)
  if not raw then return end
  local kind, stamp, used, carry = unpack_bytes(STATE, raw)
  if kind ~= BUCKET then return end
  local _, then_stamp, then_used, then_carry = unpack_bytes(STATE, ARGV[5])
  stamp, used, carry = advance(algorithm, stamp, used, carry, a, b, c)
  then_stamp, then_used, then_carry = advance(algorithm, then_stamp, then_used, then_carry, a, b, c)
  if stamp == then_stamp and used == then_used and carry == then_carry then
    save(BUCKET, stamp, max(used - cost, 0), carry)
  end
end

-- An admission is counted by what it came to. What exceeds the reserve after its window is over counts in
-- the current window; what is given back stays in its own. Flag 4: the limit has other numbers by now; those rule
-- what has come back since, and only what it cost beyond what was reserved is added.
local function settle(actual, at, counted)
  local raw = call('GET', key)
  local own_kind = KINDS[algorithm]
  local kind, stamp, used, carry = own_kind, 0, 0, 0
  if raw then kind, stamp, used, carry = unpack_bytes(STATE, raw) end
  if flags >= 4 then
    if raw and kind ~= LOG and actual > cost then
      save(kind, stamp, min(used + actual - cost, MOST), carry)
    end
    return
  end
  if kind ~= own_kind then return end
  stamp, used, carry = advance(algorithm, stamp, used, carry, a, b, c, d, e)
  if algorithm == BUCKET then
    -- Of what was reserved too much, only that is given back which time has not given back already, to
    -- the part of a token.
    local back, part = divide(max(now - at, 0), b, 0, c)
    if actual > back or (part == 0 and actual == back) or back >= cost then
      used = applied(used, max(actual, min(back, cost)))
    else
      local base = max(now, stamp)
      local under_way = (base - stamp) * b + min(carry, b - 1)
      used, under_way = used + back - cost, under_way - part
      if under_way < 0 then used, under_way = used + 1, under_way + c end
      if used <= 0 then
        used, carry = 0, 0
      else
        stamp, carry = base - floor(under_way / b), under_way % b
      end
    end
  elseif algorithm == SLIDING then
    local passed = floor(stamp / b) - floor(counted / b)
    if passed == 0 then
      used = applied(used, actual)
    elseif passed == 1 and actual <= cost then
      carry = applied(carry, actual)
    elseif actual > cost then
      used = min(used + actual - cost, MOST)
    else
      return
    end
  else
    local start, finish = window_of(algorithm, stamp, b, c, d, e)
    if counted >= start and counted < finish then
      used = applied(used, actual)
    elseif actual > cost then
      used = min(used + actual - cost, MOST)
    else
      return
    end
  end
  save(own_kind, stamp, used, carry)
end

function changes.settle()
  settle(unpack_bytes('<ddd', ARGV[5]))
end

-- What was taken was not needed: as if it had never been. A bucket that may have been whole since has
-- it back already: it can have been from when it would have drained by itself what it held then.
function changes.undo()
  local _, then_stamp, then_used, then_carry = unpack_bytes(STATE, ARGV[5])
  if algorithm ~= BUCKET then return settle(0, then_stamp, then_stamp) end
  local raw = call('GET', key)
  if not raw then return end
  local kind, stamp, used, carry = unpack_bytes(STATE, raw)
  local _, left = advance(algorithm, then_stamp, then_used, then_carry, a, b, c)
  if kind ~= BUCKET or left == 0 then return end
  stamp, used, carry = advance(algorithm, stamp, used, carry, a, b, c)
  save(BUCKET, stamp, max(used - cost, 0), carry)
end

-- What was admitted without the store is charged, within what the limit holds at all.
function changes.owe()
  local _, owed_stamp, owed_used, owed_carry = unpack_bytes(STATE, ARGV[5])
  -- It was counted by the gateway's clock.
  owed_stamp = owed_stamp + now - tonumber(ARGV[2])
  if algorithm == LOG then
    local log = rare.log_load(key, call('TYPE', key).ok == 'string' and call('GET', key), b)
    local tokens = min(owed_used, max(a - log.used, 0))
    if tokens > 0 and owed_stamp > log.at - b then rare.log_take(key, log, tokens, b) end
    return
  end
  local own_kind = KINDS[algorithm]
  local kind, stamp, used, carry = load(key, call('TYPE', key).ok == 'string' and call('GET', key))
  used, carry = read_as(own_kind, kind, used, carry)
  stamp, used, carry = advance(algorithm, stamp, used, carry, a, b, c, d, e)
  owed_stamp, owed_used, owed_carry = advance(algorithm, owed_stamp, owed_used, owed_carry, a, b, c, d, e)
  if owed_used == 0 and (algorithm ~= SLIDING or owed_carry == 0) then return end
  if algorithm == SLIDING then
    carry = max(carry, min(carry + owed_carry, a))
  elseif used == 0 then
    stamp, carry = owed_stamp, owed_carry
  end
  used = max(used, min(used + owed_used, a))
  save(own_kind, stamp, used, carry)
end

-- An entry of a log is taken back.
function changes.strike()
  local moment = unpack_bytes('<d', ARGV[5])
  for _, member in ipairs(call('ZRANGEBYSCORE', key, moment, moment)) do
    if rare.log_cost(member) == cost then
      call('ZREM', key, member)
      call('ZINCRBY', key, cost, 't')
      return
    end
  end
end

-- Nobody has used anything.
function changes.forget()
  call('DEL', key)
end

changes[change]()
return now
