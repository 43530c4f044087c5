#!/usr/bin/env bash
# Sends a gateway what two parsers could read differently: scripts/torture/run.sh target/release/sluice [WORD]
# With a WORD, only cases whose name contains it. Prints a line for each; exits with 1 if any failed.
# `--peer nginx` or `--peer haproxy` asks those instead, if they are installed, for comparison.
# CLIENTS_VENV is where the Python packages are kept from run to run, as in scripts/clients/run.sh.
set -euo pipefail

binary=${1:?usage: run.sh BINARY [WORD] [--peer nginx|haproxy]}
here=$(cd "$(dirname "$0")" && pwd)
venv=${CLIENTS_VENV:-${XDG_CACHE_HOME:-$HOME/.cache}/sluice-clients-venv}

# The packages of scripts/clients/run.sh will do; where they are not, the one that is needed is installed.
if ! "$venv/bin/python" -c 'import hpack' 2>/dev/null; then
    python3 -m venv "$venv"
    "$venv/bin/pip" install --quiet --disable-pip-version-check hpack==4.2.0
fi

folder=$(mktemp -d)
stop() {
    [ -z "${cases:-}" ] || { kill "$cases" && wait "$cases"; } 2>/dev/null || true
    rm -rf "$folder"
}
trap stop EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# In the background, so that a signal is acted on at once.
PYTHONDONTWRITEBYTECODE=1 "$venv/bin/python" "$here/torture.py" "$binary" "$folder" "${@:2}" &
cases=$!
wait "$cases"
