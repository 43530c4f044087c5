#!/usr/bin/env bash
# Ten million random source addresses against a gateway that remembers 100,000: memory must stay
# flat, a limited caller must stay limited, and a request must cost what it cost before.
# Needs wrk and target/release/sluice. `benches/flood.sh [requests]`
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
requests=${1:-10000000}
folder=$(mktemp -d)
trap 'kill "${gateway:-}" 2>/dev/null; rm -rf "$folder"' EXIT

cat > "$folder/gateway.yaml" <<YAML
listen: 127.0.0.1:18080
store: { memory: { max_keys: 100000 } }
identity: { trusted_proxies: [127.0.0.1] }
upstreams: { app: http://127.0.0.1:18081 }   # nobody is there: what is admitted costs a 502
routes: [{ path: /, upstream: app, limits: [{ by: ip, rate: 3/day }] }]
logging: { access: off }
YAML
cat > "$folder/strangers.lua" <<'LUA'
local n = 0
function setup(thread) n = n + 1; thread:set("seed", n) end
function init() math.randomseed(os.time() + seed) end
function request()
   local r = math.random
   local ip = string.format("%d.%d.%d.%d", r(1, 223), r(0, 255), r(0, 255), r(0, 255))
   return wrk.format("GET", "/", { ["X-Forwarded-For"] = ip })
end
LUA
cat > "$folder/one.lua" <<'LUA'
function request() return wrk.format("GET", "/", { ["X-Forwarded-For"] = "127.9.9.9" }) end
LUA

target/release/sluice run -c "$folder/gateway.yaml" --workers 1 2> "$folder/log" & gateway=$!
until curl -s -o /dev/null http://127.0.0.1:18080/; do sleep 0.1; done
limited() { curl -s -o /dev/null -w '%{http_code}' -H 'X-Forwarded-For: 127.9.9.9' http://127.0.0.1:18080/; }
ticks() { awk '{ print $14 + $15 }' "/proc/$gateway/stat"; }
kib() { awk '/VmRSS/ { print $2 }' "/proc/$gateway/status"; }

declare -A asked spent

# run NAME SCRIPT SECONDS: what the gateway's CPU spends on each of these requests.
run() {
    local before after done
    before=$(ticks)
    done=$(wrk -t1 -c64 -d"$3s" -s "$folder/$2" http://127.0.0.1:18080/ | awk '/requests in/ { print $1 }')
    after=$(ticks)
    asked[$1]=$((${asked[$1]:-0} + done))
    spent[$1]=$((${spent[$1]:-0} + after - before))
    echo "$1: $done requests, $(((after - before) * 10000000 / done)) ns of CPU each; $(kib) KiB; the limited caller gets $(limited)"
}

for _ in 1 2 3 4; do limited > /dev/null; done
run filling strangers.lua 10
while [ "${asked[strangers]:-0}" -lt "$requests" ]; do
    run "one caller" one.lua 3
    run strangers strangers.lua 10
done
for who in "one caller" strangers; do
    echo "$who: ${asked[$who]} requests, $((${spent[$who]} * 10000000 / ${asked[$who]})) ns of CPU each"
done
