#!/usr/bin/env bash
# Mixed traffic for a while, every answer verified: scripts/soak/run.sh target/release/sluice [SECONDS=600]
# Prints a table of what the gateway holds, every error in full, and a verdict; exits with 1 if anything
# was wrong: an answer, a connection, or what is left when everybody has gone.
set -euo pipefail

binary=${1:?usage: run.sh BINARY [SECONDS]}
here=$(cd "$(dirname "$0")" && pwd)
. "$here/../venv.sh"
need openssl openssl
install_packages
run_python soak.py "$binary" "${2:-600}"
