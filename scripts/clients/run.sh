#!/usr/bin/env bash
# Checks a gateway by clients that others wrote: scripts/clients/run.sh target/release/sluice [WORD]
# With a WORD, only checks whose name contains it. Prints a line for each; exits with 1 if any failed.
set -euo pipefail

binary=${1:?usage: run.sh BINARY [WORD]}
here=$(cd "$(dirname "$0")" && pwd)
. "$here/../venv.sh"
testssl=testssl
command -v testssl.sh >/dev/null && testssl=testssl.sh
need curl curl h2load nghttp2-client openssl openssl "$testssl" testssl.sh
install_packages
run_python clients.py "$binary" "${@:2}"
