"""Reloads and restarts under load: no request may be lost, or get anything but its right answer.

`python reloads.py BINARY FOLDER [reloads | activation | activation2 | handover ...]`, see reloads.sh.
"""

import asyncio
import hashlib
import itertools
import json
import os
import re
import random
import signal
import socket
import sys
import time
from pathlib import Path

from backend import content
from gateway import HERE, Backends, Faults, Gateway, certificates, held_ports, leave_on_sigterm, without_proxies
from http1 import Broken, Http1, Wrong, client_tls
from http2 import Http2, Unprocessed

RELOADS, RESTARTS = int(os.environ.get("RELOADS", 1000)), int(os.environ.get("RESTARTS", 5))
GRACE = 20
IDS = itertools.count(1)

GATEWAY_YAML = """\
listen:
{listen}
admin: 127.0.0.1:{admin}
upstreams:
  app: {{ endpoints: [{endpoints}], timeouts: {{ idle: {idle}s }} }}
routes:
  - path: /
    upstream: app
    request_headers: {{ set: {{ X-Generation: "{number}" }} }}
    limits:
      - {{ name: per-ip, by: ip, rate: {rate}/minute }}
{routes}
server: {{ shutdown_grace: {grace}s, max_headers: {max_headers} }}
logging: {{ access: {{ sample: {{ allowed: {sample}% }} }} }}
"""

MISTAKES = [
    lambda text: text.replace("upstream: app", "upstream: nobody"),
    lambda text: text.replace("by: ip", "by: ipp"),
    lambda text: text[:text.index("X-Generation")],
    lambda text: "",
    lambda text: text.replace("rate: ", "rate: -"),
]


class Load:
    """Callers that go on and on. `strict`: the gateway has no reason to close a connection."""

    def __init__(self, ports, folder, faults):
        self.ports, self.faults, self.random = ports, faults, random.Random(3)
        self.h1_tls, self.h2_tls = client_tls(folder, "http/1.1"), client_tls(folder, "h2")
        self.going, self.strict, self.counts = False, True, {}
        # What has been written and what is known to be in force: every answer is in between.
        self.written = self.confirmed = 0
        self.tasks = []

    def count(self, what):
        self.counts[what] = self.counts.get(what, 0) + 1

    def start(self, listeners):
        self.going = True
        for secure in [name == "tls" for name in listeners]:
            for caller in (self.kept_http1, self.kept_http1, self.short_http1, self.kept_http2, self.short_http2):
                self.tasks.append(asyncio.create_task(self.repeat(caller, secure)))
            self.tasks.append(asyncio.create_task(self.repeat(self.held_back, secure)))

    async def stop(self):
        self.going = False
        _, stuck = await asyncio.wait(self.tasks, timeout=90)
        for task in stuck:
            self.faults.add("callers", f"one does not come to an end: {task.get_coro()}")
            task.cancel()
        self.tasks.clear()

    async def repeat(self, caller, secure):
        name = caller.__name__.replace("_", " ") + (" with TLS" if secure else "")
        while self.going:
            try:
                await caller(secure)
            except Exception as error:
                self.faults.add(name, f"{type(error).__name__}: {error}")
                await asyncio.sleep(0.1)

    def pause(self):
        return asyncio.sleep(self.random.uniform(0.01, 0.05))

    def open_http1(self, secure):
        self.count("connections")
        return Http1.open(self.ports["tls" if secure else "plain"], self.h1_tls if secure else None)

    def open_http2(self, secure):
        self.count("connections")
        return Http2.open(self.ports["tls" if secure else "plain"], self.h2_tls if secure else None)

    # --- one request -----------------------------------------------------------------------------

    async def ask(self, connection):
        """One of several kinds of requests, with its answer verified."""
        kind = self.random.random()
        if kind < 0.7:
            await self.echo(connection, f"/echo/{self.random.randrange(1000)}")
        elif kind < 0.8:
            await self.echo(connection, f"/wait/{self.random.randrange(1, 300)}")
        elif kind < 0.9:
            await self.echo(connection, "/upload", content(self.random.randrange(100), self.random.randrange(1, 100_000)))
        else:
            await self.download(connection)
        self.count("requests answered")

    async def echo(self, connection, path, body=None):
        call, lowest = f"request-{next(IDS)}", self.confirmed
        answer = await connection.request("GET" if body is None else "POST", path, [("x-id", call)], body)
        try:
            told = json.loads(answer.body)
            seen = {name.lower(): value for name, value in told["headers"]}
            right = answer.status == 200 and seen["x-id"] == call and told["path"] == path
            right = right and lowest <= int(seen["x-generation"]) <= self.written
            right = right and (body is None or told["sha256"] == hashlib.sha256(body).hexdigest())
        except (ValueError, KeyError):
            right = False
        if not right:
            raise Wrong(f"{call} under generation {lowest} to {self.written} gets {answer}: {bytes(answer.body)!r} [{connection}]")

    async def download(self, connection):
        seed, size = self.random.randrange(100), self.random.randrange(1, 300_000)
        call, chunked = f"request-{next(IDS)}", self.random.choice(("", "&chunked=1"))
        answer = await connection.request("GET", f"/bytes/{size}?seed={seed}&pause=10{chunked}", [("x-id", call)])
        if answer.status != 200 or answer["x-id"] != call or answer.body != content(seed, size):
            raise Wrong(f"{call} gets {answer} [{connection}]")

    # --- callers ---------------------------------------------------------------------------------

    async def kept_http1(self, secure):
        """As real clients do: a connection that is closed between requests is replaced."""
        connection = await self.open_http1(secure)
        try:
            while self.going and not connection.closing and not connection.is_closed():
                try:
                    await self.ask(connection)
                except Broken as broken:
                    # It was being closed while the request was on its way: only a second or later one.
                    if self.strict or not broken.silent or connection.requests < 2:
                        raise
                    self.count("requests sent again: keep-alive race, "
                               + ("closed" if "closed, not reset" in str(broken) else "reset"))
                    return
                await self.pause()
            if self.going:
                if self.strict:
                    raise Broken(f"closed without a reason [{connection}]")
                self.count("connections closed between requests"
                           + (", as announced" if connection.closing else ", unannounced"))
        finally:
            await connection.close()

    async def short_http1(self, secure):
        """One request on a new connection: whatever happens to it is an error."""
        async with await self.open_http1(secure) as connection:
            await self.ask(connection)
        await self.pause()

    async def held_back(self, secure):
        """Connects, and takes a moment before it says something."""
        async with await self.open_http1(secure) as connection:
            await asyncio.sleep(self.random.uniform(0, 0.3))
            if connection.is_closed():
                raise Broken(f"a new connection is closed before its first request [{connection}]")
            await self.ask(connection)
        await self.pause()

    async def kept_http2(self, secure):
        async with await self.open_http2(secure) as connection:
            while self.going and connection.usable:
                await asyncio.gather(*(self.stream(connection) for _ in range(4)))
                await self.pause()
            if self.going:
                if self.strict or not connection.goaway:
                    raise Broken(f"{connection.end or 'told to go away'} without a reason [{connection}]")
                self.count("connections told to go away")

    async def stream(self, connection):
        try:
            await self.ask(connection)
        except Unprocessed:
            if self.strict:
                raise
            self.count("requests sent again: refused by GOAWAY")

    async def short_http2(self, secure):
        async with await self.open_http2(secure) as connection:
            if connection.usable:
                await self.stream(connection)
            elif self.strict:
                raise Broken(f"told to go away without a reason [{connection}]")
            else:
                self.count("connections told to go away before a request")
        await self.pause()


class Files:
    """Files of many kinds, all for the same load."""

    def __init__(self, ports, listeners):
        self.ports, self.listeners = ports, listeners

    def listen(self, extra):
        lines = []
        if "plain" in self.listeners:
            lines.append(f"  - 127.0.0.1:{self.ports['plain']}")
        if "tls" in self.listeners:
            lines.append(f"  - address: 127.0.0.1:{self.ports['tls']}")
            lines.append("    tls: { certificates: [{ cert: localhost.pem, key: localhost.key }] }")
        return "\n".join(lines + [f"  - 127.0.0.1:{self.ports['extra']}"] * extra)

    def yaml(self, number, admin):
        endpoints = [f'"http://127.0.0.1:{self.ports[name]}"' for name in ("one", "two")]
        # Endpoints, routes, a listener and much else come and go.
        endpoints = [endpoints, endpoints[:1], endpoints[1:], endpoints[::-1]][number % 4]
        routes = "\n".join(f"  - {{ path: /unused/{route}, upstream: app }}" for route in range(number % 5))
        return GATEWAY_YAML.format(
            listen=self.listen(number % 3 == 1), admin=admin, endpoints=", ".join(endpoints), idle=2 + number % 3,
            number=number, rate=1_000_000 + number % 7, routes=routes, grace=GRACE, max_headers=100 + number % 2,
            sample=number % 2)


def checked(gateway):
    accepted, said = gateway.check()
    if not accepted:
        raise SystemExit(f"the gateway refuses its file:\n{said}")


async def in_force(load):
    """The number that the file in force sets."""
    async with await Http1.open(load.ports["plain"]) as connection:
        answer = await connection.request("GET", "/echo")
    return int({name.lower(): value for name, value in json.loads(answer.body)["headers"]}["x-generation"])


async def until(what, look, seconds=30):
    end = time.monotonic() + seconds
    while not await look():
        if time.monotonic() > end:
            raise Broken(f"{what}: not within {seconds} s")
        await asyncio.sleep(0.01)


# --- reloads -------------------------------------------------------------------------------------


async def reloads(binary, folder, ports, faults):
    """Writes file after file, and waits until each is taken or refused. Every other one by SIGHUP."""
    gateway, files = Gateway(binary, folder, ports["admin"]), Files(ports, ("plain", "tls"))
    load = Load(ports, folder, faults)
    gateway.write(files.yaml(0, ports["admin"]))
    checked(gateway)
    gateway.start()
    try:
        await gateway.ready()
        load.start(("plain", "tls"))
        await asyncio.sleep(2)
        began, before, held = time.monotonic(), load.counts.get("requests answered", 0), gateway.held()
        for turn in range(1, RELOADS + 1):
            try:
                await reload(gateway, files, load, turn)
            except Exception as error:
                faults.add("reload", f"number {turn}: {type(error).__name__}: {error}")
            if turn % 100 == 0:
                now = gateway.held()
                print(f"{turn:5} reloads, {time.monotonic() - began:4.0f} s, {load.counts.get('requests answered', 0) - before:6} "
                      f"requests, {now['rss']} KiB, {now['sockets']} sockets, {len(faults)} errors", flush=True)
        await load.stop()
        metrics = await gateway.metrics()
        taken = {name: int(value) for name, value in metrics.items() if name.startswith("sluice_config_")}
        print(f"the gateway counts {taken}; before the first {held['rss']} KiB, {held['kinds']}")
        report(load)
    finally:
        gateway.stop()
    return [gateway]


async def reload(gateway, files, load, turn):
    before = await gateway.metrics()
    bad = turn % 10 == 0
    counter = f'sluice_config_reloads_total{{result="{"error" if bad else "ok"}"}}'
    text = files.yaml(turn, gateway.admin)
    if bad:
        gateway.write(MISTAKES[turn // 10 % len(MISTAKES)](text))
    else:
        load.written = turn
        gateway.write(text)
    if turn % 2:
        gateway.signal(signal.SIGHUP)

    async def is_counted():
        return (await gateway.metrics()).get(counter, 0) > before.get(counter, 0)

    await until(f"{counter} counts a changed file", is_counted)
    if bad:
        if (seen := await in_force(load)) != load.written:
            raise Wrong(f"{seen} is in force after a bad file, not {load.written}")
    else:
        # A signal and a notice may both count: what callers see is what counts.
        async def is_in_force():
            return await in_force(load) == turn
        await until(f"file {turn} is in force", is_in_force)
        load.confirmed = turn


# --- restarts ------------------------------------------------------------------------------------

# What an init system does for a service with sockets: they are 3 and further, and the process knows
# by its own number that they are meant for it.
HAND_OVER = """
import fcntl, os, sys
# First out of the way, so that none is overwritten before it is in its place.
sockets = [fcntl.fcntl(int(number), fcntl.F_DUPFD_CLOEXEC, 100) for number in sys.argv[1].split(",")]
os.closerange(3, 100)
for position, number in enumerate(sockets):
    os.dup2(number, 3 + position)
os.environ["LISTEN_FDS"], os.environ["LISTEN_PID"] = str(len(sockets)), str(os.getpid())
os.execv(sys.argv[2], sys.argv[2:])
"""


class Activated(Gateway):
    """A process that is given its listening sockets."""

    sockets = ()

    def start(self):
        numbers = [each.fileno() for each in self.sockets]
        self.launch([sys.executable, "-c", HAND_OVER, ",".join(map(str, numbers)), *self.command()], pass_fds=numbers)


async def activation(binary, folder, ports, faults, listeners=("plain",)):
    """The listening sockets are nobody's: they are open before the first process and after the last."""
    sockets = []
    for name in listeners:
        sockets.append(socket.create_server(("127.0.0.1", ports[name]), backlog=1024))
    try:
        def make(*arguments):
            gateway = Activated(*arguments)
            gateway.sockets = sockets
            return gateway
        return await restarts(make, binary, folder, ports, faults, Files(ports, listeners))
    finally:
        for each in sockets:
            each.close()


async def activation2(binary, folder, ports, faults):
    return await activation(binary, folder, ports, faults, ("plain", "tls"))


async def handover(binary, folder, ports, faults):
    """SIGUSR2: each process starts the next one, gives it its sockets, and finishes."""
    gateway, files = Gateway(binary, folder, ports["admin"]), Files(ports, ("plain", "tls"))
    load = Load(ports, folder, faults)
    load.strict = False
    gateway.write(files.yaml(0, ports["admin"]))
    checked(gateway)
    gateway.start()
    processes = [gateway.pid]
    try:
        await gateway.ready()
        load.start(files.listeners)
        await asyncio.sleep(2)
        for number in range(1, RESTARTS + 1):
            before, began = len(faults), time.monotonic()
            # The next process reads another file than the one that is in force.
            load.written = 3 * number
            gateway.write(files.yaml(load.written, ports["admin"]))
            os.kill(processes[-1], signal.SIGUSR2)

            async def has_taken_over():
                taken = re.findall(r"process (\d+) has taken over", gateway.log.read_text(errors="replace"))
                processes[1:] = map(int, taken)
                return len(taken) == number

            async def has_finished():
                return gateway.has_ended() if number == 1 else not Path(f"/proc/{processes[number - 1]}").exists()

            await until("another process takes over", has_taken_over)
            await until("the one before finishes", has_finished, GRACE + 10)
            load.confirmed = load.written
            print(f"handover {number}: to process {processes[-1]}, {time.monotonic() - began:.2f} s, "
                  f"{len(faults) - before} errors meanwhile", flush=True)
            await asyncio.sleep(1)
        await load.stop()
        report(load)
    except Exception as error:
        faults.add("handover", f"{type(error).__name__}: {error}")
    finally:
        gateway.stop()
        for process in processes[1:]:
            if Path(f"/proc/{process}").exists():
                os.kill(process, signal.SIGKILL)
    return [gateway]


async def restarts(make, binary, folder, ports, faults, files):
    """A new process beside the old one; when it is ready, the old one is told to finish."""
    load, gateways = Load(ports, folder, faults), []
    load.strict = False
    admins = itertools.cycle((ports["admin"], ports["other_admin"]))

    async def begin(number):
        gateway = make(binary, folder, next(admins), f"gateway-{number}.yaml")
        gateways.append(gateway)
        gateway.write(files.yaml(3 * number, gateway.admin))  # a multiple of three: nothing else to listen on
        checked(gateway)
        load.written = 3 * number
        gateway.start()
        await gateway.ready()
        return gateway

    try:
        old = await begin(0)
        load.start(files.listeners)
        await asyncio.sleep(2)
        for number in range(1, RESTARTS + 1):
            new = await begin(number)
            await asyncio.sleep(1)
            before, began = len(faults), time.monotonic()
            old.signal(signal.SIGTERM)
            code = await old.ended(GRACE + 10)
            if code != 0:
                faults.add("restart", f"number {number}: the old process ends with {code}")
                old.stop()
            # Nobody else is there any more.
            load.confirmed = load.written
            print(f"restart {number}: the old process took {time.monotonic() - began:.2f} s to finish, "
                  f"{len(faults) - before} errors meanwhile", flush=True)
            old = new
            await asyncio.sleep(1)
        await load.stop()
        report(load)
    finally:
        for gateway in gateways:
            gateway.stop()
    return gateways


def report(load):
    for what, count in sorted(load.counts.items()):
        print(f"{count:8} {what}")


WAYS = {"reloads": reloads, "activation": activation, "activation2": activation2, "handover": handover}


def main(binary, folder, *ways):
    leave_on_sigterm()
    without_proxies()
    ways = ways or ("reloads",)
    for way in ways:
        if way not in WAYS:
            raise SystemExit(f"there is no way '{way}', but {', '.join(WAYS)}")
    certificates(Path(folder))
    failed = 0
    with Backends() as backends:
        backends.start(HERE / "backend.py")
        for way in ways:
            print(f"--- {way}", flush=True)
            names = ("plain", "tls", "extra", "admin", "other_admin")
            ports, faults = backends.ports | dict(zip(names, held_ports(len(names)))), Faults()
            # A folder for each, so that no log is taken for another's.
            own = Path(folder) / way
            own.mkdir()
            for name in ("ca.pem", "localhost.pem", "localhost.key"):
                (own / name).write_bytes((Path(folder) / name).read_bytes())
            gateways = asyncio.run(WAYS[way](binary, own, ports, faults))
            failed |= faults.verdict(gateways)
    return failed


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
