"""What every check uses: how one is registered and run, and how curl is called."""

import asyncio
import json
import os
import signal
import subprocess
import time
from contextlib import contextmanager

CHECKS = []


class Failed(Exception):
    """A check did not see what it should have; the message says what it saw."""


def check(over=(None,), seconds=40):
    """Registers a check, named by its function. `over` registers it once for each of these."""
    def register(function):
        client = function.__module__.removeprefix("check_")
        name = f"{client}: {function.__name__.replace('_', ' ')}"
        for way in over:
            arguments = () if way is None else (way,)
            CHECKS.append((f"{name}, over {way}" if arguments else name, seconds, function, arguments))
        return function
    return register


def run_checks(lab, word):
    """Runs the checks whose name contains the word, prints a line for each, and counts failures."""
    def too_long(*_):
        raise Failed("took too long")

    signal.signal(signal.SIGALRM, too_long)
    failed = 0
    for name, seconds, function, arguments in [entry for entry in CHECKS if word in entry[0]]:
        signal.alarm(seconds)
        try:
            if asyncio.iscoroutine(done := function(lab, *arguments)):
                asyncio.run(done)
            print(f"ok   {name}", flush=True)
        except Exception as error:
            failed += 1
            why = str(error) if isinstance(error, Failed) else f"{type(error).__name__}: {error}"
            print(f"FAIL {name}: {' '.join(why.split())[:400]}", flush=True)
        finally:
            signal.alarm(0)
    return failed


def expect(truth, why):
    if not truth:
        raise Failed(why)


def equal(what, seen, wanted):
    expect(seen == wanted, f"{what} is {seen!r}, not {wanted!r}")


def eventually(what, look, seconds=5):
    """Looks until something is seen, and returns it."""
    end = time.monotonic() + seconds
    while not (seen := look()):
        expect(time.monotonic() < end, f"{what}: not within {seconds} s")
        time.sleep(0.02)
    return seen


def output(*command, given="", seconds=30):
    """Runs a program and all that it starts; returns what is printed."""
    with started(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        return process.communicate(given.encode(), seconds)[0].decode(errors="replace")


@contextmanager
def started(command, **options):
    """A program in the background, stopped at the end with all that it started."""
    process = start(command, **{"stderr": subprocess.DEVNULL, **options})
    try:
        yield process
    finally:
        stop(process)


def start(command, **options):
    """A program in a session of its own, so that it can be stopped with all that it started."""
    return subprocess.Popen([str(part) for part in command], start_new_session=True, **options)


def stop(process):
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGTERM)
    try:
        process.wait(5)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


# --- curl ----------------------------------------------------------------------------------------

# How callers may come: the listener, the version that is spoken, and what curl is told.
H1, H1_TLS = "HTTP/1.1", "HTTP/1.1 and TLS"
H2C, H2_TLS = "h2c", "HTTP/2 and TLS"
WAYS = {
    H1: ("plain", "1.1", ["--http1.1"]),
    H1_TLS: ("tls", "1.1", ["--http1.1"]),
    H2C: ("plain", "2", ["--http2-prior-knowledge"]),
    H2_TLS: ("tls", "2", ["--http2"]),
}


class Answer:
    """What curl got: the last head's `status` and `headers`, heads before it, trailers, the body."""

    def __init__(self, curl, heads, body):
        self.exit, self.status, self.version = curl["exitcode"], curl["http_code"], curl["http_version"]
        self.error, self.body = curl["errormsg"], body
        blocks = [block.split("\n") for block in heads.replace("\r", "").split("\n\n") if block]
        parsed = [(int(block[0].split()[1]), pairs(block[1:])) for block in blocks if block[0].startswith("HTTP/")]
        self.interim, self.headers = parsed[:-1], parsed[-1][1] if parsed else {}
        self.trailers = {name: value for block in blocks if not block[0].startswith("HTTP/")
                         for name, value in pairs(block).items()}

    @property
    def json(self):
        return json.loads(self.body)

    def backend_header(self, name):
        """The values of a header as the backend got it, from /echo."""
        return [value for key, value in self.json["headers"] if key.lower() == name]


def pairs(lines):
    """Header lines as a map; names in small letters, values of one name joined."""
    headers = {}
    for name, value in (line.split(":", 1) for line in lines if ":" in line):
        headers.setdefault(name.lower(), []).append(value.strip())
    return {name: ", ".join(values) for name, values in headers.items()}


def curl_command(lab, url, *options):
    """Whatever the name, the connection goes to 127.0.0.1."""
    return ["curl", "-sS", "--max-time", "30", "--cacert", str(lab.folder / "ca.pem"),
            "--connect-to", "::127.0.0.1:", *map(str, options), url]


def curl(lab, url, *options):
    """Calls any URL."""
    heads, body = lab.folder / "curl-heads", lab.folder / "curl-body"
    heads.write_bytes(b"")
    body.write_bytes(b"")
    done = subprocess.run(curl_command(lab, url, "-D", heads, "-o", body, "-w", "%{json}", *options),
                          capture_output=True, timeout=35)
    return Answer(json.loads(done.stdout), heads.read_text(errors="replace"), body.read_bytes())


def fetch(lab, way, path, *options, status=200):
    """Calls a path of the gateway in one of the WAYS, which must be the one that is used."""
    listener, version, how = WAYS[way]
    answer = curl(lab, lab.url(listener) + path, *how, *options)
    expect(answer.exit == 0, f"curl says {answer.error!r}")
    equal("the HTTP version", answer.version, version)
    equal("the status", answer.status, status)
    return answer
