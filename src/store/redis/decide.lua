-- One decision over all layers of a request: computed first, written only if every enforcing layer
-- allows.
--
-- KEYS: a counter for each layer.
-- ARGV: the time (a test's, or nothing), this gateway's name, and for each layer its LAYER.
-- Flags of a layer: 1 it is a shadow and never rejects; 2 it takes what there is, up to its cost.
--
-- Answers with the store's time, whether the request is admitted, and every layer's state before it:
-- numbers as STATE; a log as its oldest entries that count, the moment of the newest and the sum.

local gateway = ARGV[2]
local raws = call('MGET', unpack(KEYS))
local admitted, reply, writes = 1, {}, {}

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
        local tokens = log_cost(some[i])
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
  local algorithm, flags, cost, a, b, c, d, e = unpack_bytes(LAYER, ARGV[i + 2])
  local allowed
  if algorithm == LOG then
    local log = log_load(key, raw, b)
    allowed = cost <= max(a - log.used, 0)
    reply[i] = log_reply(key, log, cost, a, b)
    if allowed then writes[i] = { LOG, log, cost, b } end
  elseif algorithm == CONCURRENCY then
    local all, own, dead, foreign = flying(key, gateway)
    allowed = all + cost <= a
    reply[i] = pack(STATE, CONCURRENCY, now, all, 0)
    if allowed then writes[i] = { CONCURRENCY, own + cost, dead, foreign, b } end
  else
    local kind, stamp, used, carry = load(key, raw)
    reply[i] = raw or pack(STATE, kind, stamp, used, carry)
    local own_kind = kind_of(algorithm)
    used, carry = read_as(own_kind, kind, used, carry)
    stamp, used, carry = advance(algorithm, stamp, used, carry, a, b, c, d, e)
    local room = room_of(algorithm, stamp, used, carry, a, b, c, d)
    if flags >= 2 then cost = min(cost, room) end
    allowed = cost <= room
    if allowed and cost > 0 then
      used = used + cost
      writes[i] = { pack(STATE, own_kind, stamp, used, carry), life(algorithm, stamp, used, a, b, c, d, e) }
    end
  end
  if not allowed and flags % 2 == 0 then admitted = 0 end
end

if admitted == 1 then
  for i, write in pairs(writes) do
    local key = KEYS[i]
    if write[1] == LOG then
      log_take(key, write[2], write[3], write[4])
    elseif write[1] == CONCURRENCY then
      if write[4] then call('DEL', key) end
      if #write[3] > 0 then call('HDEL', key, unpack(write[3])) end
      fly(key, gateway, write[2], write[5])
    else
      call('SET', key, write[1], 'PX', write[2])
    end
  end
end

return pack('<dB', now, admitted) .. table.concat(reply)
