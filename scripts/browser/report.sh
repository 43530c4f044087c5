#!/usr/bin/env bash
# Takes the picture of a report that the docs show: scripts/browser/report.sh BINARY FILE
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
. "$here/../venv.sh"
need chromium chromium

binary=$(realpath "${1:?usage: report.sh BINARY FILE}")
picture=$(realpath -m "${2:?usage: report.sh BINARY FILE}")
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$here/../../examples/calibrating"
"$binary" simulate -c first.yaml --top 5 --html "$folder/report.html" access.log.gz >/dev/null
mkdir -p "$(dirname "$picture")"
chromium --headless --no-sandbox --disable-gpu --hide-scrollbars --user-data-dir="$folder/profile" \
    --window-size=1180,1560 --screenshot="$picture" "file://$folder/report.html" 2>/dev/null
