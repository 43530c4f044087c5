"""What every check uses: how one is registered and run, how to wait, how to start and stop programs."""

import os
import signal
import subprocess
import time
from contextlib import suppress

CHECKS = []


class Failed(Exception):
    """A check did not see what it should have; the message says what it saw."""


def check(needs="gateway", seconds=60):
    """Registers a check, named by its function. `needs` is "page" if any dashboard will do, whoever serves it."""
    def register(function):
        CHECKS.append((function.__name__.replace("_", " "), needs, seconds, function))
        return function
    return register


def run_checks(lab, word):
    """Runs the checks whose name contains the word, prints a line for each, and counts."""
    def too_long(*_):
        raise Failed("took too long")

    signal.signal(signal.SIGALRM, too_long)
    passed = failed = 0
    for name, needs, seconds, function in CHECKS:
        if word not in name or needs not in lab.offers:
            continue
        signal.alarm(seconds)
        try:
            function(lab)
            passed += 1
            print(f"ok   {name}", flush=True)
        except Exception as error:
            failed += 1
            why = str(error) if isinstance(error, Failed) else f"{type(error).__name__}: {error}"
            print(f"FAIL {name}: {' '.join(why.split())[:600]}", flush=True)
        finally:
            signal.alarm(0)
    return passed, failed


def expect(truth, why):
    if not truth:
        raise Failed(why)


def equal(what, seen, wanted):
    expect(seen == wanted, f"{what} is {seen!r}, not {wanted!r}")


def eventually(what, look, seconds=10):
    """Looks until something is seen, and returns it."""
    end = time.monotonic() + seconds
    while not (seen := look()):
        expect(time.monotonic() < end, f"{what}: not within {seconds} s")
        time.sleep(0.03)
    return seen


def start(command, **options):
    """A program in a session of its own, so that it can be stopped with all that it started."""
    return subprocess.Popen([str(part) for part in command], start_new_session=True, **options)


def stop(process):
    """Ends a program; what is left of its session a moment later is killed."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGTERM)
    try:
        process.wait(8)
    except subprocess.TimeoutExpired:
        pass
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
