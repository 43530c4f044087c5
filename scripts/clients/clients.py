"""Checks the gateway by clients that others wrote: curl, h2load, grpcio, websockets, openssl, testssl.sh.

`python clients.py BINARY FOLDER [WORD]`: in FOLDER everything is written; only checks whose name
contains WORD are run. See run.sh.
"""

import signal
import sys
import time

import check_conformance
import check_curl
import check_grpc
import check_h2
import check_h2load
import check_openssl
import check_testssl
import check_websockets
from kit import CHECKS, run_checks
from lab import Lab, without_proxies


def main(binary, folder, word=""):
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    without_proxies()
    began = time.monotonic()
    with Lab(binary, folder) as lab:
        if not lab.wait_until_ready():
            print(f"FAIL the gateway does not start:\n{lab.log.read_text()}")
            return 1
        failed = run_checks(lab, word)
        said = lab.log.read_text(errors="replace")
        if lab.gateway.poll() is not None or "panicked" in said:
            failed += 1
            print("FAIL the gateway goes on running: it ended or panicked")
        if failed:
            print("The last that the gateway said:", *said.splitlines()[-15:], sep="\n  ")
    done = sum(word in name for name, *_ in CHECKS)
    print(f"{done} checks, {failed} failed, {time.monotonic() - began:.0f} s")
    return 1 if failed or not done else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
