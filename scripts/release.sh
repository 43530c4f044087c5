#!/usr/bin/env bash
# Writes dist/sluice: the binary to deploy. Fat LTO, and profile-guided optimisation trained on the
# benchmark's own mix of load. Without llvm-profdata, wrk, h2load or openssl it is LTO alone, and says so.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

host=$(rustc -vV | awk '/^host:/ { print $2 }')
profdata=$(rustc --print target-libdir)/../bin/llvm-profdata
pgo=target/pgo
mkdir -p dist

plain() {
    echo "without profile-guided optimisation: $1" >&2
    cargo build --release --locked
    install -m 755 target/release/sluice dist/sluice
    exit 0
}

[ -x "$profdata" ] || rustup component add llvm-tools >/dev/null 2>&1 || true
[ -x "$profdata" ] || plain "llvm-profdata is missing (rustup component add llvm-tools)"
for tool in wrk h2load openssl; do
    command -v "$tool" >/dev/null || plain "$tool is missing, and nothing else puts the load on (make bench-peers)"
done

# --target keeps the flags away from build scripts and macros, which run while it is built.
build() { RUSTFLAGS=$1 cargo build --release --locked --target "$host" --target-dir "$pgo/$2"; }

rm -rf "$pgo/profiles"
build "-Cprofile-generate=$PWD/$pgo/profiles" generate
cargo bench --bench compare --quiet -- train --binary "$pgo/generate/$host/release/sluice"
"$profdata" merge -o "$pgo/merged.profdata" "$pgo/profiles"
build "-Cprofile-use=$PWD/$pgo/merged.profdata" use
install -m 755 "$pgo/use/$host/release/sluice" dist/sluice
echo "dist/sluice: LTO and profile-guided optimisation"
