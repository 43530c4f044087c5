-- One decision over all layers of a request: computed first, written only if every enforcing layer
-- allows.
--
-- KEYS: a counter for each layer.
-- ARGV: the time (a test's, or nothing), what the request is called while it is in flight, and for
-- each layer its LAYER.
-- Flags of a layer: 1 it is a shadow and never rejects; 2 it takes what there is, up to its cost.
--
-- Answers with the store's time, whether the request is admitted, and every layer's state before it:
-- numbers as STATE; a log as its oldest entries that count, the moment of the newest and the sum.

local flight = ARGV[2]
local raws = call('MGET', unpack(KEYS))
local admitted, reply = 1, {}
-- What is written if the request is admitted: states and how long they live; the rest as functions.
local states, lives, others, rare = {}, {}, {}, nil

-- As many of the oldest admissions as it takes to tell when there is room.
local function log_reply(key, log, cost, count, window)
  local need, sum, from, entries = max(cost, log.used + cost - count), 0, 0, {}
  if log.foreign then
    if log.first then entries[1] = pack('<dI4', log.first, log.used) end
  else
    local step = min(need, 100)
    local edge = string.format('(%.0f', max(log.at - window, 0))
    while sum < need and sum < log.used do
      local some = call('ZRANGEBYSCORE', key, edge, '+inf', 'WITHSCORES', 'LIMIT', from, step)
      if #some == 0 then break end
      for i = 1, #some, 2 do
        local tokens = rare.log_cost(some[i])
        entries[#entries + 1] = pack('<dI4', tonumber(some[i + 1]), tokens)
        sum = sum + tokens
        if sum >= need then break end
      end
      from = from + step
    end
  end
  return pack('<I4', #entries) .. table.concat(entries) .. pack('<dI4', log.newest, log.used)
end

for i = 1, #KEYS do
  local key, raw = KEYS[i], raws[i]
  local algorithm, flags, cost, taken, a, b, c, d, e = unpack_bytes(LAYER, ARGV[i + 2])
  local allowed
  if algorithm == LOG then
    rare = rare or rarely()
    local log = rare.log_load(key, raw, b)
    allowed = cost <= max(a - log.used, 0)
    reply[i] = log_reply(key, log, cost, a, b)
    if allowed then others[i] = function() rare.log_take(key, log, cost, b) end end
  elseif algorithm == CONCURRENCY then
    rare = rare or rarely()
    local all = raw and 0 or rare.flying(key)
    allowed = all + cost <= a
    reply[i] = pack(STATE, CONCURRENCY, now, all, 0)
    if allowed then others[i] = function() rare.fly(key, flight, cost, b) end end
  else
    local kind, stamp, used, carry = load(key, raw)
    reply[i] = raw or pack(STATE, kind, stamp, used, carry)
    local own_kind = KINDS[algorithm]
    if kind ~= own_kind then used, carry = read_as(own_kind, kind, used, carry) end
    stamp, used, carry = advance(algorithm, stamp, used, carry, a, b, c, d, e)
    local room = room_of(algorithm, stamp, used, carry, a, b, c, d)
    if flags >= 2 then
      cost = min(cost, room)
      taken = cost
    end
    allowed = cost <= room
    if allowed and cost > 0 then
      used = used + taken
      states[i] = pack(STATE, own_kind, stamp, used, carry)
      lives[i] = life(algorithm, stamp, used, a, b, c, d, e)
    end
  end
  if not allowed and flags % 2 == 0 then admitted = 0 end
  if not allowed and raw and algorithm ~= CONCURRENCY then
    -- An edited rate may have made it last longer than was thought when it was written.
    local kind, stamp, used = unpack_bytes(STATE, raw)
    local millis = life(algorithm, stamp, used, a, b, c, d, e)
    if call('PTTL', key) < millis then call('PEXPIRE', key, millis) end
  end
end

if admitted == 1 then
  for i = 1, #KEYS do
    if states[i] then
      call('SET', KEYS[i], states[i], 'PX', lives[i])
    elseif others[i] then
      others[i]()
    end
  end
end

return pack('<dB', now, admitted) .. table.concat(reply)
