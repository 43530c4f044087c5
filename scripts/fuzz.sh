#!/usr/bin/env bash
# Runs fuzz targets one after the other, each for ten minutes (SECONDS_EACH=600): scripts/fuzz.sh [TARGET ...]
# All of them by default. Goes on after a find, which is kept in fuzz/artifacts/, and exits with 1.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

cargo +nightly fuzz --version >/dev/null 2>&1 || {
    rustup toolchain install nightly --profile minimal
    cargo install cargo-fuzz --locked
}
targets=("$@")
if [ $# -eq 0 ]; then
    mapfile -t targets < <(basename --suffix=.rs --multiple fuzz/fuzz_targets/*.rs)
fi
# New inputs stay out of the corpus that is kept.
found=$(mktemp -d)
trap 'rm -rf "$found"' EXIT
failed=()
for target in "${targets[@]}"; do
    options=(-max_total_time="${SECONDS_EACH:-600}" -rss_limit_mb=2048 -timeout=10 -max_len=4096)
    [ "$target" != config_yaml ] || options+=(-max_len=8192)
    dictionary=fuzz/dictionaries/$target.dict
    [ ! -f "$dictionary" ] || options+=(-dict="$dictionary")
    mkdir -p "$found/$target"
    cargo +nightly fuzz run "$target" "$found/$target" "fuzz/corpus/$target" -- "${options[@]}" || failed+=("$target")
done
[ ${#failed[@]} -eq 0 ] || { echo "found something: ${failed[*]}" >&2; exit 1; }
