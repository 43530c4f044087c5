"""What the programs run in: ports, the backends, the gateway as a process, and what it holds."""

import asyncio
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from json import loads
from pathlib import Path

from http1 import Broken, Http1

HERE = Path(__file__).parent
CLIENTS = HERE.parent / "clients"
sys.path += [str(CLIENTS), str(HERE.parent / "shared")]
from kit import start, stop
from addresses import held_ports
from lab import certificates, without_proxies  # for the programs, as held_ports is: they find them here


class Backends:
    """Programs that print their ports and end with their input. As a context they are stopped."""

    def __init__(self):
        self.processes, self.ports = [], {}

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in self.processes:
            stop(process)

    def start(self, *command):
        process = start([sys.executable, *command], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.processes.append(process)
        ports = loads(process.stdout.readline())
        self.ports |= ports
        return ports


class Gateway:
    """One process of the gateway. `admin` is the port of its operator's page."""

    def __init__(self, binary, folder, admin, file="gateway.yaml"):
        self.binary, self.folder, self.admin = Path(binary).resolve(), Path(folder), admin
        self.file, self.log, self.process = self.folder / file, self.folder / f"{file}.log", None

    def write(self, text):
        """Puts a file in the place of the one before, in one step."""
        new = self.file.with_suffix(".new")
        new.write_text(text)
        new.rename(self.file)

    def check(self):
        """Whether the file is accepted, and what is said about it."""
        done = subprocess.run([self.binary, "check", self.file.name], cwd=self.folder, capture_output=True, text=True)
        return done.returncode == 0, done.stdout + done.stderr

    def command(self):
        return [self.binary, "run", "-c", self.file.name]

    def start(self):
        self.launch(self.command())

    def launch(self, command, **options):
        log = self.log.open("ab")
        self.process = start(command, cwd=self.folder, stdout=subprocess.DEVNULL, stderr=log, **options)

    @property
    def pid(self):
        return self.process.pid

    def signal(self, which):
        os.kill(self.pid, which)

    def has_ended(self):
        return self.process.poll() is not None

    def stop(self):
        if self.process is not None:
            stop(self.process)

    async def ended(self, seconds):
        """Waits until the process has ended; its exit code, or nothing."""
        end = time.monotonic() + seconds
        while not self.has_ended() and time.monotonic() < end:
            await asyncio.sleep(0.02)
        return self.process.poll()

    async def ready(self, seconds=30):
        end = time.monotonic() + seconds
        while time.monotonic() < end and not self.has_ended():
            try:
                async with await Http1.open(self.admin) as connection:
                    if (await connection.request("GET", "/readyz")).status == 200:
                        return
            except Broken:
                await asyncio.sleep(0.05)
        raise SystemExit(f"the gateway does not start:\n{self.said()}")

    def said(self, lines=15):
        return "\n".join("  " + line for line in self.log.read_text(errors="replace").splitlines()[-lines:])

    def panicked(self):
        return "panicked" in self.log.read_text(errors="replace")

    async def metrics(self):
        """Samples of the metrics page, by name with labels."""
        async with await Http1.open(self.admin, limit=1 << 20) as connection:
            answer = await connection.request("GET", "/metrics")
        if answer.status != 200:
            raise Broken(f"the metrics are {answer}")
        lines = [line for line in answer.body.decode().splitlines() if line and not line.startswith("#")]
        return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines)}

    def held(self):
        """What the kernel says that the process holds: memory in KiB, descriptors by kind, CPU seconds."""
        proc = Path(f"/proc/{self.pid}")
        status = dict(re.findall(r"^(\w+):\s+(\d+)", (proc / "status").read_text(), re.M))
        kinds = Counter()
        for descriptor in (proc / "fd").iterdir():
            try:
                target = os.readlink(descriptor)
            except OSError:
                continue
            kinds[re.sub(r":?\[?\d*\]?$", "", target) if ":" in target else "file"] += 1
        return {
            "rss": int(status["VmRSS"]), "anonymous": int(status["RssAnon"]), "threads": int(status["Threads"]),
            "sockets": kinds["socket"], "descriptors": sum(kinds.values()), "kinds": dict(kinds),
            "cpu": cpu_seconds(self.pid),
        }


def cpu_seconds(pid):
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Faults:
    """Everything that should not have been. Each is printed when it is seen."""

    MOST = 50

    def __init__(self):
        self.began, self.all = time.monotonic(), []

    def add(self, who, what):
        text = f"{who}: {what}"
        self.all.append(text)
        if len(self.all) <= self.MOST:
            stamp = time.strftime("%H:%M:%S")
            print(f"ERROR {stamp} ({time.monotonic() - self.began:.3f} s) {text}", flush=True)
        elif len(self.all) == self.MOST + 1:
            print("ERROR further ones are only counted", flush=True)

    def __len__(self):
        return len(self.all)

    def verdict(self, gateways):
        """The last lines, and the exit code."""
        for gateway in gateways:
            if gateway.panicked():
                self.add("gateway", "panicked")
        if self.all:
            for gateway in gateways:
                print(f"The last that {gateway.file.name} said:", gateway.said(), sep="\n")
            print(f"FAILED: {len(self.all)} errors", flush=True)
            for who, count in Counter(text.split(":")[0] for text in self.all).most_common():
                print(f"  {count:6} {who}")
        else:
            print("PASSED: no errors", flush=True)
        return 1 if self.all else 0


def leave_on_sigterm():
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
