"""Slow callers by slowhttptest, and somebody else who wants to be served meanwhile.

`python slow.py BINARY FOLDER [headers | body | drip | read | unread | range ...]`, see slow.sh. How long the gateway
holds a connection is read from the kernel's table of sockets; slowhttptest's own statistics and the
gateway's metrics are shown beside it.
"""

import asyncio
import csv
import os
import subprocess
import sys
import time
from pathlib import Path

from backend import content
from gateway import HERE, Backends, Faults, Gateway, cpu_seconds, held_ports, leave_on_sigterm, without_proxies
from http1 import Http1, Wrong
from kit import start, stop

CONNECTIONS = int(os.environ.get("CONNECTIONS", 800))
RATE = 200  # new connections a second
HEADERS, BODY, IDLE = 10, 6, 8  # the gateway's time-outs, in seconds
SLACK = 2  # how much longer a connection may be held
LATEST = 1  # seconds for an answer to somebody else, beyond what the backend itself takes
LOOK_EVERY, PROBE_EVERY = 0.25, 0.1

GATEWAY_YAML = """\
listen: 127.0.0.1:{plain}
admin: 127.0.0.1:{admin}
upstreams:
  app: {{ endpoints: ["http://127.0.0.1:{one}"], timeouts: {{ idle: 5s, response: 60s }} }}
routes:
  - {{ path: /, upstream: app, limits: [{{ by: ip, rate: 1000000/minute }}] }}
server: {{ header_timeout: {headers}s, body_timeout: {body}s, idle_timeout: {idle}s }}
logging: {{ access: off }}
"""

# What slowhttptest is told, how long it runs, which time-out must end its connections, and how many
# there are at most.
# In `body` the next piece comes later than the gateway waits; in `drip` it comes in time, but is too
# little to count. In `read` and `unread` there are tiny windows, and five bytes a second are
# taken: of an answer that the kernel's buffers may hold whole, and of one that they do not hold, by fewer
# callers, since each of them can cost the machine several mebibytes. In `range` nobody stays.
MODES = {
    "headers": (["-H", "-i", "3", "-x", "24"], "/echo", 30, HEADERS, 2000),
    "body": (["-B", "-i", "20", "-s", "100000", "-x", "10", "-t", "POST"], "/upload", 35, BODY, 2000),
    "drip": (["-B", "-i", "2", "-s", "100000", "-x", "10", "-t", "POST"], "/upload", 30, BODY, 2000),
    "read": (["-X", "-n", "1", "-z", "5", "-w", "10", "-y", "200"], f"/bytes/{1 << 20}", 25, IDLE, 1000),
    "unread": (["-X", "-n", "1", "-z", "5", "-w", "10", "-y", "200"], f"/bytes/{5 << 20}", 25, IDLE, 100),
    "range": (["-R", "-a", "5", "-b", "2000"], "/bytes/1000", 30, IDLE, 2000),
}

# States of sockets, as the kernel writes them.
FIN_WAIT1, LISTEN = "04", "0A"


def connections(port):
    """Connections on this port that a process holds, and bytes that the kernel still has for each that
    was closed before its caller has taken them. Sockets of no process have no inode."""
    held, left = set(), []
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        _, local, peer, state, queues, *_ = fields = line.split()
        if not local.endswith(f":{port:04X}") or state == LISTEN:
            continue
        if fields[9] != "0":
            held.add(peer)
        elif state == FIN_WAIT1:
            left.append(int(queues.split(":")[0], 16))
    return held, left


class Watch:
    """How long the gateway holds each connection, to a quarter of a second."""

    def __init__(self, port):
        self.port, self.first, self.last, self.left = port, {}, {}, []

    async def run(self):
        while True:
            now = time.monotonic()
            held, left = connections(self.port)
            self.left = max(self.left, left, key=len)
            for peer in held:
                # A port that is used anew after a while is another connection.
                if now - self.last.get(peer, now) > 3 * LOOK_EVERY + 1:
                    self.first.pop(peer)
                self.first.setdefault(peer, now)
                self.last[peer] = now
            await asyncio.sleep(LOOK_EVERY)

    def lifetimes(self, without):
        """Of those that were there for a moment at least."""
        return sorted(seconds for peer, first in self.first.items()
                      if (seconds := self.last[peer] - first) >= 1 and peer not in without)


class Probe:
    """A normal request every 100 ms, on a kept connection and on new ones in turn; beside it the same
    request to the backend itself, so that a machine that is busy is not taken for a slow gateway."""

    def __init__(self, port, backend, faults):
        self.port, self.backend, self.faults = port, backend, faults
        self.times, self.beyond, self.own, self.kept = [], [], set(), None

    async def run(self):
        turn, under_way = 0, set()
        try:
            while True:
                turn += 1
                task = asyncio.create_task(self.once(turn % 2 == 0))
                under_way.add(task)
                task.add_done_callback(under_way.discard)
                await asyncio.sleep(PROBE_EVERY)
        finally:
            await asyncio.gather(*under_way, return_exceptions=True)
            if self.kept:
                await self.kept.close()

    async def once(self, on_kept):
        try:
            took, direct = await asyncio.gather(self.ask_kept() if on_kept else self.ask_new(self.port),
                                                self.ask_new(self.backend))
        except Exception as error:
            return self.faults.add("probe", f"{type(error).__name__}: {error}")
        self.times.append(took)
        self.beyond.append(took - direct)
        if took - direct > LATEST:
            self.faults.add("probe", f"answered after {took:.3f} s; the backend itself took {direct:.3f} s")

    async def ask_new(self, port):
        began = time.monotonic()
        async with await Http1.open(port) as connection:
            await self.verify(connection)
        return time.monotonic() - began

    async def ask_kept(self):
        kept, self.kept = self.kept, None  # whoever comes while it is in use opens another
        began = time.monotonic()
        if kept is None:
            kept = await Http1.open(self.port)
            self.own.add(f"0100007F:{kept.local[1]:04X}")
        await self.verify(kept)
        if self.kept is None:
            self.kept = kept
        else:
            await kept.close()
        return time.monotonic() - began

    async def verify(self, connection):
        answer = await connection.request("GET", "/bytes/2000?seed=5")
        if answer.status != 200 or answer.body != content(5, 2000):
            raise Wrong(f"the answer is {answer} [{connection}]")


def percentile(times, share):
    return sorted(times)[min(len(times) - 1, int(len(times) * share))] if times else float("nan")


def opened_and_closed(path):
    """slowhttptest's own statistics, second by second: how many it has opened so far, and seen closed."""
    seconds = []
    try:
        rows = list(csv.reader(path.open()))[1:]
    except OSError:
        return seconds
    for row in rows:
        at, closed, _, connected = (int(field) for field in row[:4])
        seconds.append((at, closed + connected, closed))
    return seconds


def longest_by_statistics(seconds, length):
    """How long a connection stayed open for slowhttptest: how much later as many were closed."""
    longest = 0
    if seconds and seconds[-1][0] < length - 1:
        # It ends before its time when all are closed, and does not write that down.
        seconds = [*seconds, (seconds[-1][0] + 1, seconds[-1][1], seconds[-1][1])]
    for at, opened, _ in seconds:
        until = next((later for later, _, closed in seconds if closed >= opened), None)
        if until is None:
            return None
        longest = max(longest, until - at)
    return longest


async def run_mode(mode, gateway, ports, folder, faults):
    options, path, seconds, time_out, most = MODES[mode]
    wanted = min(CONNECTIONS, most)
    # It takes as much of a core as it gets: others first.
    command = ["nice", "-n", "15", "slowhttptest", *options, "-c", wanted, "-r", RATE, "-l", seconds, "-p", "5", "-v", "0", "-g",
               "-o", folder / mode, "-u", f"http://127.0.0.1:{ports['plain']}{path}"]
    watch, probe = Watch(ports["plain"]), Probe(ports["plain"], ports["one"], faults)
    before = await gateway.metrics()
    tasks = [asyncio.create_task(watch.run()), asyncio.create_task(probe.run())]
    attack = start(command, stdin=subprocess.DEVNULL, stdout=(folder / f"{mode}.out").open("wb"), stderr=subprocess.STDOUT)
    most, used = 0, [gateway.held()["cpu"], 0]
    try:
        end = time.monotonic() + seconds + 30
        while attack.poll() is None and time.monotonic() < end:
            most = max(most, int((await gateway.metrics())["sluice_connections"]))
            if attack.poll() is None:
                used[1] = cpu_seconds(attack.pid)
            await asyncio.sleep(0.5)
    finally:
        stop(attack)
    await asyncio.sleep(SLACK)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await report(mode, gateway, folder, faults, watch, probe, wanted, most, used, before)


async def report(mode, gateway, folder, faults, watch, probe, wanted, most, used, before):
    _, _, length, time_out, _ = MODES[mode]
    lifetimes = watch.lifetimes(probe.own)
    statistics = opened_and_closed(folder / f"{mode}.csv")
    after = await gateway.metrics()
    refused = {name: int(value - before.get(name, 0)) for name, value in after.items()
               if name.startswith(("sluice_refused_total", "sluice_requests_total")) and value != before.get(name, 0)}
    print(f"{mode}: {len(lifetimes)} slow connections, at most {most} at once by the gateway's count")
    print(f"  held        longest {lifetimes[-1] if lifetimes else 0:.1f} s, half of them {percentile(lifetimes, 0.5):.1f} s or less; "
          + f"time-out {time_out} s")
    told = longest_by_statistics(statistics, length)
    opened = max((opened for _, opened, _ in statistics), default=0)
    print(f"  slowhttptest opened {opened}, longest "
          + (f"{told} s" if told is not None else "until its own end"))
    if watch.left:
        print(f"  kernel      {len(watch.left)} connections that the gateway has closed still hold {sum(watch.left) // 1024} KiB unsent")
    print(f"  probe       {len(probe.times)} answers, p50 {percentile(probe.times, 0.5) * 1000:.0f} ms, "
          f"p99 {percentile(probe.times, 0.99) * 1000:.0f} ms, max {max(probe.times, default=0) * 1000:.0f} ms; "
          f"beyond the backend's own time max {max(probe.beyond, default=0) * 1000:.0f} ms")
    held = gateway.held()
    print(f"  gateway     {refused}; {held['rss']} KiB, {held['sockets']} sockets afterwards; "
          f"CPU {held['cpu'] - used[0]:.1f} s, slowhttptest {used[1]:.1f} s", flush=True)
    late = [seconds for seconds in lifetimes if seconds > time_out + SLACK]
    if late:
        faults.add(mode, f"{len(late)} connections are held for up to {late[-1]:.1f} s; their time-out is {time_out} s")
    if opened < wanted / 2 or mode != "range" and len(lifetimes) < wanted / 2:
        faults.add(mode, f"slowhttptest opened only {opened} connections: {(folder / f'{mode}.out').read_text()[-500:]}")
    if not probe.times:
        faults.add(mode, "the probe was never answered")


async def run(gateway, ports, folder, modes, faults):
    gateway.write(GATEWAY_YAML.format(**ports, headers=HEADERS, idle=IDLE, body=BODY))
    accepted, said = gateway.check()
    if not accepted:
        raise SystemExit(f"the gateway refuses its file:\n{said}")
    gateway.start()
    await gateway.ready()
    for mode in modes:
        await run_mode(mode, gateway, ports, folder, faults)
        if gateway.has_ended():
            return faults.add("gateway", f"ended with {gateway.process.returncode}")


def main(binary, folder, *modes):
    leave_on_sigterm()
    without_proxies()
    for mode in modes:
        if mode not in MODES:
            raise SystemExit(f"there is no mode '{mode}', but {', '.join(MODES)}")
    faults = Faults()
    with Backends() as backends:
        backends.start(HERE / "backend.py")
        ports = backends.ports | dict(zip(("plain", "admin"), held_ports(2)))
        gateway = Gateway(binary, folder, ports["admin"])
        try:
            asyncio.run(run(gateway, ports, Path(folder), modes or tuple(MODES), faults))
        finally:
            gateway.stop()
        return faults.verdict([gateway])


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
