#!/usr/bin/env bash
# Checks the dashboard in a browser, in front of a real gateway: scripts/browser/run.sh [BINARY] [WORD]
# With a WORD, only checks whose name contains it. Prints a line for each; exits with 1 if any failed.
# BINARY is $SLUICE or target/debug/sluice unless it is given. `--shots FOLDER` keeps the screenshots,
# `--url URL` asks a dashboard that runs already, as far as that can be checked without its gateway.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
binary=${SLUICE:-$here/../../target/debug/sluice}
if [ $# -gt 0 ] && [ -x "$1" ] && [ ! -d "$1" ]; then
    binary=$1
    shift
fi
. "$here/../venv.sh"
need chromium chromium
install_packages
run_python browser.py "$binary" "$@"
