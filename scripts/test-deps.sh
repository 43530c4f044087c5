#!/usr/bin/env bash
# Makes sure that what the tests need beside Rust is there: redis-server. As root it is installed
# where apt-get can do so; otherwise the message says what is missing.
set -euo pipefail

if command -v redis-server >/dev/null; then
    exit 0
fi

if [ "$(id -u)" -ne 0 ]; then
    echo "the tests need redis-server; install it, for example: sudo apt-get install redis-server" >&2
    exit 1
fi
if ! command -v apt-get >/dev/null; then
    echo "the tests need redis-server, and there is no apt-get here to install it with" >&2
    exit 1
fi

export DEBIAN_FRONTEND=noninteractive
apt-get update
apt-get install -y redis-server
