"""Sends a gateway what could be read in two ways, and counts what it makes of it.

`python torture.py BINARY FOLDER [WORD] [--peer nginx|haproxy]`: in FOLDER everything is written; only
cases whose name contains WORD are run. See run.sh.
"""

import argparse
import signal
import sys
import time
from pathlib import Path

from check_answers import Answers
from check_http2 import Http2
from check_requests import Requests
from kit import Score
from lab import Lab

PARTS = [("requests", Requests, False), ("answers", Answers, False), ("http2", Http2, True)]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("binary")
    parser.add_argument("folder")
    parser.add_argument("word", nargs="?", default="")
    parser.add_argument("--peer", choices=["nginx", "haproxy"])
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    began, score = time.monotonic(), Score()
    for name, part, http2 in PARTS:
        def make_lab(app, name=name, http2=http2):
            return Lab(given.binary, Path(given.folder) / name, app, given.peer, http2)

        before, failed_before, started = score.cases, len(score.failed), time.monotonic()
        with part(make_lab) as running:
            for label, case in running.checks():
                if given.word in label:
                    score.run(label, case)
            if trouble := running.lab.trouble():
                score.failed.append(name)
                print(f"FAIL {name}: the gateway goes on running: {trouble}")
        if score.cases > before:
            print(f"{name}: {score.cases - before} cases, {len(score.failed) - failed_before} failed, "
                  f"{time.monotonic() - started:.0f} s", flush=True)
    for remark, count in sorted(score.remarks.items()):
        print(f"{count} where there is a choice: {remark}")
    print(f"{score.ambiguous} where what reached the upstream could be read in more than one way")
    print(f"{score.cases} cases, {len(score.failed)} failed, {time.monotonic() - began:.0f} s")
    return 1 if score.failed or not score.cases else 0


if __name__ == "__main__":
    sys.exit(main())
