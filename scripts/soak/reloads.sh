#!/usr/bin/env bash
# Reloads and restarts under load, no request lost: scripts/soak/reloads.sh target/release/sluice [WAY ...]
# WAY is one or more of
#   reloads      a thousand files, every tenth of them bad (the default)
#   activation   a new process takes over a listening socket that was handed to both (LISTEN_FDS)
#   activation2  the same with two sockets, the second with TLS
#   handover     each process starts the next one and gives it its sockets (SIGUSR2)
# RELOADS=1000 and RESTARTS=5 say how many. Exits with 1 if anything was wrong.
set -euo pipefail

binary=${1:?usage: reloads.sh BINARY [reloads | activation | activation2 | handover ...]}
here=$(cd "$(dirname "$0")" && pwd)
. "$here/../venv.sh"
need openssl openssl
install_packages
run_python reloads.py "$binary" "${@:2}"
