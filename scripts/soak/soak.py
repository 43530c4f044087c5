"""Mixed traffic through the gateway for a while, every answer verified; then everybody leaves.

`python soak.py BINARY FOLDER SECONDS`, see run.sh. Callers are in callers.py. The gateway is warmed up,
left alone to see what it holds at rest, used for SECONDS, and left alone again: what it holds must be
what it held before.
"""

import asyncio
import hashlib
import os
import random
import sys
import time
from pathlib import Path
from statistics import mean

import callers
from gateway import CLIENTS, HERE, Backends, Faults, Gateway, certificates, held_ports, leave_on_sigterm, without_proxies
from http1 import Broken, Http1, client_tls

WARM_UP, SAMPLE_EVERY, RELOAD_EVERY, REST, FULL = 30, 5, 3, 20, 10
GROWTH = 0.05

GATEWAY_YAML = """\
listen:
  - 127.0.0.1:{plain}
  - address: 127.0.0.1:{tls}
    tls: {{ certificates: [{{ cert: localhost.pem, key: localhost.key }}] }}
{coming_and_going}
admin: 127.0.0.1:{admin}

identity:
  user: {{ jwt: {{ secret: "{secret}" }} }}
  api_key: {{ keys: [{{ id: known, sha256: "{key_hash}", plan: small }}] }}
plans:
  small: {{ rate: 1000000/second }}
default_plan: small

limits:
  - {{ name: per-ip, by: ip, rate: {rate}/minute }}
  - {{ name: ceiling, by: global, rate: 1000000/second }}

upstreams:
  app: {{ endpoints: ["http://127.0.0.1:{one}", "http://127.0.0.1:{two}"], timeouts: {{ idle: 2s, response: 40s }} }}
  other: {{ endpoints: ["http://127.0.0.1:{app}"], balance: round_robin, timeouts: {{ idle: 2s }} }}
  hasty: {{ endpoints: ["http://127.0.0.1:{two}"], timeouts: {{ idle: 2s, response: 1s }} }}
  ws: {{ endpoints: ["http://127.0.0.1:{ws}"], timeouts: {{ idle: 2s }} }}
  grpc: {{ endpoints: ["http://127.0.0.1:{grpc}"], http2: true, timeouts: {{ idle: 2s }} }}
  grpcs: {{ endpoints: ["https://localhost:{grpcs}"], ca: ca.pem, http2: true, timeouts: {{ idle: 2s }} }}
  gone: {{ endpoints: ["http://127.0.0.1:{gone}"] }}

# The limits by X-Caller are spent once and do not come back while this runs: what is answered does
# not depend on how fast anybody is.
routes:
  - {{ path: /bytes/*, upstream: app }}
  - {{ path: /wait/*, upstream: app }}
  - {{ path: /status/*, upstream: app }}
  - {{ path: /breaks/*, upstream: app }}
  - {{ path: /upload, upstream: app, request_headers: {{ set: {{ X-Generation: "{number}" }} }} }}
  - {{ path: /echo/*, upstream: other, request_headers: {{ set: {{ X-Generation: "{number}" }} }} }}
  - {{ path: /v1/echo/*, upstream: app, rewrite: {{ strip_prefix: /v1 }} }}
  - {{ path: /hasty/*, upstream: hasty, rewrite: {{ strip_prefix: /hasty }} }}
  - {{ path: /gone, upstream: gone }}
  - {{ path: /get, upstream: app, methods: [GET] }}
  - {{ path: /small, upstream: app, max_body_bytes: 64KiB }}
  - {{ name: key, path: /key/*, upstream: app, require: api_key, rewrite: {{ strip_prefix: /key }}, limits: [{{ by: api_key, rate: plan }}] }}
  - {{ name: user, path: /user/*, upstream: app, require: user, rewrite: {{ strip_prefix: /user }} }}
  - {{ path: /limited/token_bucket, upstream: app, limits: [{{ by: "header:X-Caller", rate: 3/7d }}] }}
  - {{ path: /limited/gcra, upstream: app, limits: [{{ by: "header:X-Caller", rate: 3/7d, algorithm: gcra, burst: 3 }}] }}
  - {{ path: /limited/fixed_window, upstream: app, limits: [{{ by: "header:X-Caller", rate: 3/365d, algorithm: fixed_window }}] }}
  - {{ path: /limited/sliding_window, upstream: app, limits: [{{ by: "header:X-Caller", rate: 3/365d, algorithm: sliding_window }}] }}
  - {{ path: /limited/sliding_log, upstream: app, limits: [{{ by: "header:X-Caller", rate: 3/7d, algorithm: sliding_log }}] }}
  - {{ name: held, path: /held/*, upstream: app, rewrite: {{ strip_prefix: /held }}, limits: [{{ by: "header:X-Caller", concurrency: 2 }}] }}
  - {{ path: /test.Service/*, upstream: grpc }}
  - {{ path: /test.Secure/*, upstream: grpcs }}
  - {{ path: /ws/*, upstream: ws }}

server: {{ header_timeout: 5s, idle_timeout: 15s, max_body_bytes: 6MiB }}
"""

MISTAKES = [
    lambda text: text.replace("upstream: gone }", "upstream: nobody }"),
    lambda text: text.replace("rewrite:", "rewritten:", 1),
    lambda text: text[:text.index("strip_prefix")],
    lambda text: text + "\n  - } not yaml: [",
    lambda text: "",
    lambda text: text.replace("localhost.pem", "missing.pem"),
]


class Soak:
    """What callers share: where things are, what is wrong, and whether to go on."""

    def __init__(self, gateway, ports, folder, faults):
        self.gateway, self.ports, self.faults = gateway, ports, faults
        self.folder, self.going, self.number, self.broken_files = folder, False, 0, 0
        self.h1_tls, self.h2_tls = client_tls(folder, "http/1.1"), client_tls(folder, "h2")
        self.counts, self.random, self.samples = {}, random.Random(2), []

    def count(self, what, by=1):
        self.counts[what] = self.counts.get(what, 0) + by

    def yaml(self, number):
        # One that comes and goes: nobody is asked there.
        extra = f"  - 127.0.0.1:{self.ports['extra']}" if number % 2 else ""
        return GATEWAY_YAML.format(**self.ports, coming_and_going=extra, number=number, rate=1_000_000 + number,
                                   secret=callers.SECRET, key_hash=hashlib.sha256(callers.KEY.encode()).hexdigest())

    async def use(self, seconds):
        """Lets all callers come, and waits until the last has left."""
        self.going = True
        began = time.monotonic()
        tasks = [asyncio.create_task(self.repeat(name, unit, pause))
                 for name, unit, count, pause in callers.ALL for _ in range(count)]
        tasks += [asyncio.create_task(self.reload()), asyncio.create_task(self.watch(began))]
        await asyncio.sleep(seconds)
        self.going = False
        _, stuck = await asyncio.wait(tasks, timeout=90)
        for task in stuck:
            self.faults.add("callers", f"one does not come to an end: {task.get_coro()} {task.get_stack()}")
            task.cancel()

    async def repeat(self, name, unit, pause):
        await asyncio.sleep(self.random.uniform(0, pause))
        while self.going:
            try:
                await unit(self)
                self.count(name)
            except Exception as error:
                self.faults.add(name, f"{type(error).__name__}: {error}")
            await asyncio.sleep(pause * self.random.uniform(0.5, 1.5))

    async def reload(self):
        """A new file every few seconds; every tenth is refused, and nothing changes."""
        turn = 0
        while self.going:
            await asyncio.sleep(RELOAD_EVERY)
            turn += 1
            try:
                await (self.bad_file() if turn % 10 == 0 else self.good_file())
                await self.tell_generation()
            except Exception as error:
                self.faults.add("reload", f"{type(error).__name__}: {error}")

    async def good_file(self):
        before = await self.gateway.metrics()
        self.number += 1
        self.gateway.write(self.yaml(self.number))
        await self.until_counted('sluice_config_reloads_total{result="ok"}', before)
        self.count("reload")

    async def bad_file(self):
        before = await self.gateway.metrics()
        self.broken_files += 1
        self.gateway.write(MISTAKES[self.broken_files % len(MISTAKES)](self.yaml(self.number + 1)))
        after = await self.until_counted('sluice_config_reloads_total{result="error"}', before)
        if before["sluice_config_generation"] != after["sluice_config_generation"]:
            self.faults.add("reload", f"a broken file is in force: {before} {after}")
        await self.tell_generation()
        self.gateway.write(self.yaml(self.number))
        await self.until_counted('sluice_config_reloads_total{result="ok"}', after)
        self.count("reload refused")

    async def until_counted(self, counter, before):
        end = time.monotonic() + 30
        while time.monotonic() < end:
            after = await self.gateway.metrics()
            if after.get(counter, 0) > before.get(counter, 0):
                return after
            await asyncio.sleep(0.05)
        raise Broken(f"{counter} does not count a changed file within 30 s")

    async def tell_generation(self):
        """What the file that is in force sets must be what the backend gets."""
        async with await Http1.open(self.ports["plain"]) as connection:
            told = await callers.echo(self, connection, "/echo/generation")
        seen = dict(told["headers"]).get("X-Generation") or dict(told["headers"]).get("x-generation")
        if seen != str(self.number):
            self.faults.add("reload", f"generation {seen} is in force, not {self.number}")

    async def watch(self, began):
        while self.going:
            try:
                await self.sample(time.monotonic() - began)
            except Exception as error:
                self.faults.add("metrics", f"{type(error).__name__}: {error}")
                if self.gateway.has_ended():
                    self.going = False
            await asyncio.sleep(SAMPLE_EVERY)

    async def sample(self, at):
        metrics, held = await self.gateway.metrics(), self.gateway.held()
        held |= {
            "at": at, "ours": sum(os.times()[:2]),
            "connections": int(metrics["sluice_connections"]), "in_flight": int(metrics["sluice_requests_in_flight"]),
            "requests": int(sum(value for name, value in metrics.items() if name.startswith("sluice_requests_total"))),
            "keys": int(metrics["sluice_memory_keys"]), "generation": int(metrics["sluice_config_generation"]),
        }
        before = self.samples[-1] if self.samples else held
        seconds = max(at - before["at"], 0.001)
        print(f"{at:5.0f} {held['rss']:8} {held['anonymous']:8} {held['sockets']:7} {held['descriptors']:5} "
              f"{held['threads']:7} {held['connections']:5} {held['in_flight']:9} {held['keys']:6} {held['generation']:6} "
              f"{(held['requests'] - before['requests']) / seconds:7.0f} {(held['cpu'] - before['cpu']) / seconds:7.0%} "
              f"{(held['ours'] - before['ours']) / seconds:7.0%} {len(self.faults):6}", flush=True)
        self.samples.append(held)
        return held

    async def rest(self, wanted=None):
        """Waits until nothing is left of anybody, and no more descriptors than `wanted`; what is held."""
        end, steady, last = time.monotonic() + REST, 0, None
        while True:
            metrics, held = await self.gateway.metrics(), self.gateway.held()
            held |= {"connections": metrics["sluice_connections"], "in_flight": metrics["sluice_requests_in_flight"],
                     "keys": metrics["sluice_memory_keys"]}
            nobody = held["connections"] == held["in_flight"] == 0
            if wanted is None:
                # The first time nobody knows what to wait for: until nothing has changed for 6 s.
                steady = steady + 1 if nobody and held["kinds"] == last else 0
                last = held["kinds"]
                if steady == 12:
                    return held
            elif nobody and held["kinds"] == wanted["kinds"]:
                return held
            if time.monotonic() > end:
                return held
            await asyncio.sleep(0.5)


def compare(faults, samples, seconds):
    """Memory of the last minute beside that of the first, which begins when all callers are there."""
    span = min(60, seconds / 3)
    first = [sample for sample in samples if FULL <= sample["at"] < FULL + span]
    last = [sample for sample in samples if sample["at"] > samples[-1]["at"] - span]
    for name in ("rss", "anonymous"):
        before, after = (mean(sample[name] for sample in part) for part in (first, last))
        growth = after / before - 1
        print(f"{name:10} first {span:.0f} s {before:9.0f} KiB, last {span:.0f} s {after:9.0f} KiB: {growth:+.1%}")
        # The part that is anonymous is shown to tell where growth comes from; it is judged with the rest.
        if name == "rss" and growth > GROWTH:
            faults.add("memory", f"{name} grew by {growth:.1%}, from {before:.0f} to {after:.0f} KiB")


def compare_rest(faults, before, after):
    print(f"at rest    before {describe(before)}\n           after  {describe(after)}")
    for name in ("connections", "in_flight"):
        if after[name]:
            faults.add("rest", f"{name} is {after[name]:.0f} when everybody has left")
    if after["kinds"] != before["kinds"]:
        faults.add("rest", f"descriptors are {after['kinds']}, and were {before['kinds']}")
    if after["threads"] > before["threads"]:
        faults.add("rest", f"there are {after['threads']} threads, and were {before['threads']}")


def describe(held):
    names = ("rss", "anonymous", "kinds", "threads", "connections", "in_flight", "keys")
    return ", ".join(f"{name} {held[name]}" for name in names)


async def run(gateway, ports, folder, seconds, faults):
    soak = Soak(gateway, ports, folder, faults)
    gateway.write(soak.yaml(0))
    accepted, said = gateway.check()
    if not accepted:
        raise SystemExit(f"the gateway refuses its file:\n{said}")
    gateway.start()
    await gateway.ready()
    print("    s  RSS/KiB anon/KiB sockets  fds threads conns in-flight   keys config   req/s gateway    ours errors")
    await soak.use(WARM_UP)
    # Whatever came in between, one listener more or less is not a leak.
    soak.number += soak.number % 2
    gateway.write(soak.yaml(soak.number))
    await asyncio.sleep(1)
    before = await soak.rest()
    print(f"warm; at rest it holds {describe(before)}", flush=True)

    soak.samples.clear()
    await soak.use(seconds)
    soak.number += soak.number % 2
    gateway.write(soak.yaml(soak.number))
    await asyncio.sleep(1)
    await callers.settle(soak)
    after = await soak.rest(before)

    print("\n" + "\n".join(f"{count:8} {what}" for what, count in sorted(soak.counts.items())) + "\n")
    compare(faults, soak.samples, seconds)
    compare_rest(faults, before, after)
    first, last = soak.samples[0], soak.samples[-1]
    span = last["at"] - first["at"]
    print(f"used       gateway {(last['cpu'] - first['cpu']) / span:.0%} of a core, callers {(last['ours'] - first['ours']) / span:.0%}")


def main(binary, folder, seconds):
    leave_on_sigterm()
    without_proxies()
    folder, faults = Path(folder), Faults()
    certificates(folder)
    with Backends() as backends:
        backends.start(CLIENTS / "backends.py", folder)
        backends.start(HERE / "backend.py")
        ports = backends.ports | dict(zip(("plain", "tls", "extra", "admin", "gone"), held_ports(5)))
        gateway = Gateway(binary, folder, ports["admin"])
        try:
            asyncio.run(run(gateway, ports, folder, float(seconds), faults))
            if gateway.has_ended():
                faults.add("gateway", f"ended with {gateway.process.returncode}")
        finally:
            gateway.stop()
        return faults.verdict([gateway])


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
