"""Checks the dashboard, and the report of `sluice simulate`, in a real browser.

`python browser.py BINARY FOLDER [WORD] [--url URL] [--shots FOLDER]`: in FOLDER everything is written; only
checks whose name contains WORD are run. See run.sh.
"""

import argparse
import signal
import sys
import time
from pathlib import Path

import check_page
import check_report
import check_traffic
import check_acts
import check_trouble
from chromium import Chromium
from kit import run_checks
from lab import Lab, Visited, without_proxies


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("binary")
    parser.add_argument("folder")
    parser.add_argument("word", nargs="?", default="")
    parser.add_argument("--url", help="a dashboard that runs already")
    parser.add_argument("--shots", help="where screenshots are kept")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    without_proxies()
    began, folder = time.monotonic(), Path(given.folder)
    shots = Path(given.shots) if given.shots else folder / "shots"
    shots.mkdir(parents=True, exist_ok=True)
    with Chromium(folder) as chromium, Visited(given.url) if given.url else Lab(given.binary, folder) as lab:
        lab.chromium, lab.shots = chromium, shots
        passed, failed = run_checks(lab, given.word)
        if trouble := lab.trouble():
            failed += 1
            print(f"FAIL the gateway goes on running: {trouble}")
    print(f"{time.monotonic() - began:.0f} s" + (f", screenshots in {shots}" if given.shots else ""))
    print(f"{passed} passed, {failed} failed")
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    sys.exit(main())
