#!/usr/bin/env bash
# slowhttptest against the gateway, and somebody who wants to be served meanwhile:
# scripts/soak/slow.sh target/release/sluice [MODE ...]
# MODE is one or more of headers, body, drip, read, unread, range; all of them by default. CONNECTIONS=800 says how
# many. Exits with 1 if a slow connection outlives its time-out, or somebody else has to wait for it.
set -euo pipefail

binary=${1:?usage: slow.sh BINARY [headers | body | drip | read | unread | range ...]}
here=$(cd "$(dirname "$0")" && pwd)
. "$here/../venv.sh"
need slowhttptest slowhttptest
install_packages
run_python slow.py "$binary" "${@:2}"
