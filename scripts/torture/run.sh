#!/usr/bin/env bash
# Sends a gateway what two parsers could read differently: scripts/torture/run.sh target/release/sluice [WORD]
# With a WORD, only cases whose name contains it. Prints a line for each; exits with 1 if any failed.
# `--peer nginx` or `--peer haproxy` asks those instead, if they are installed, for comparison.
set -euo pipefail

binary=${1:?usage: run.sh BINARY [WORD] [--peer nginx|haproxy]}
here=$(cd "$(dirname "$0")" && pwd)
. "$here/../venv.sh"
need
install_packages
run_python torture.py "$binary" "${@:2}"
