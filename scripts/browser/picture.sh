#!/usr/bin/env bash
# Takes the picture of the dashboard that the docs show: scripts/browser/picture.sh BINARY FILE
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
. "$here/../venv.sh"
need chromium chromium
install_packages
run_python picture.py "${1:?usage: picture.sh BINARY FILE}" "${2:?usage: picture.sh BINARY FILE}"
