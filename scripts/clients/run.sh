#!/usr/bin/env bash
# Checks a gateway by clients that others wrote: scripts/clients/run.sh target/release/sluice [WORD]
# With a WORD, only checks whose name contains it. Prints a line for each; exits with 1 if any failed.
# CLIENTS_VENV is where the Python packages are kept from run to run.
set -euo pipefail

binary=${1:?usage: run.sh BINARY [WORD]}
here=$(cd "$(dirname "$0")" && pwd)
venv=${CLIENTS_VENV:-${XDG_CACHE_HOME:-$HOME/.cache}/sluice-clients-venv}
packages=(grpcio==1.85.1 websockets==17.4 h2==4.4.1 hpack==4.2.0)

missing=()
command -v curl >/dev/null || missing+=(curl)
command -v h2load >/dev/null || missing+=(nghttp2-client)
command -v openssl >/dev/null || missing+=(openssl)
command -v testssl >/dev/null || command -v testssl.sh >/dev/null || missing+=(testssl.sh)
python3 -c 'import ensurepip' 2>/dev/null || missing+=(python3-venv)
if [ ${#missing[@]} -gt 0 ]; then
    if [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null; then
        echo "these checks need ${missing[*]}; install them, for example: sudo apt-get install ${missing[*]}" >&2
        exit 1
    fi
    export DEBIAN_FRONTEND=noninteractive
    apt-get update
    apt-get install -y --no-install-recommends "${missing[@]}"
fi

# What was installed is written beside it, so that a change of versions installs anew.
if [ "$(cat "$venv/packages" 2>/dev/null)" != "${packages[*]}" ]; then
    python3 -m venv "$venv"
    "$venv/bin/pip" install --quiet --disable-pip-version-check "${packages[@]}"
    echo "${packages[*]}" >"$venv/packages"
fi

folder=$(mktemp -d)
stop() {
    [ -z "${checks:-}" ] || { kill "$checks" && wait "$checks"; } 2>/dev/null || true
    rm -rf "$folder"
}
trap stop EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# In the background, so that a signal is acted on at once.
PYTHONDONTWRITEBYTECODE=1 "$venv/bin/python" "$here/clients.py" "$binary" "$folder" "${@:2}" &
checks=$!
wait "$checks"
