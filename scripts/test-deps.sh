#!/usr/bin/env bash
# Makes sure that what the tests need beside Rust is there: redis-server, and promtool (which checks the
# metrics and the alerts; without it, but for continuous integration, the tests that need it are
# skipped). As root they are installed where apt-get can do so; otherwise the message says what is
# missing.
set -euo pipefail

missing=()
command -v redis-server >/dev/null || missing+=(redis-server)
command -v promtool >/dev/null || missing+=(prometheus)
[ ${#missing[@]} -gt 0 ] || exit 0

if [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null; then
    echo "the tests need ${missing[*]}; for example: sudo apt-get install ${missing[*]}" >&2
    command -v redis-server >/dev/null || exit 1
    exit 0
fi

export DEBIAN_FRONTEND=noninteractive
apt-get update
apt-get install -y --no-install-recommends "${missing[@]}"
