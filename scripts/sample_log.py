#!/usr/bin/env python3
"""Makes the sample log of docs/calibrating.md, the same each time: scripts/sample_log.py > access.log.gz

A day of a small shop, as nginx logs it. Most callers are people; an office shares an address, an app polls,
a partner synchronises at night, somebody copies the catalogue, and somebody tries passwords.
"""

import gzip
import random
import sys
from datetime import datetime, timedelta, timezone

DAY = datetime(2026, 2, 9, tzinfo=timezone.utc)
PEOPLE = 500
RANDOM = random.Random(7)
BROWSER = "Mozilla/5.0 (X11; Linux x86_64)"


def hour():
    """When people come: little at night, most in the evening."""
    weights = [2, 1, 1, 1, 1, 2, 4, 7, 9, 10, 10, 11, 12, 11, 10, 10, 11, 13, 16, 18, 19, 16, 10, 5]
    return RANDOM.choices(range(24), weights)[0]


def person(ip, visits=1):
    """Reads some pages, a few seconds each; each page asks for several things at once."""
    for _ in range(visits):
        at = hour() * 3600 + RANDOM.random() * 3600
        for _ in range(RANDOM.randint(1, 12)):
            page = RANDOM.choice(["/", "/api/products", f"/api/products/{RANDOM.randint(1, 400)}", "/api/cart"])
            yield at, ip, "GET", page, 200
            for _ in range(RANDOM.randint(0, 3)):
                yield at + RANDOM.random(), ip, "GET", f"/api/products/{RANDOM.randint(1, 400)}", 200
            if RANDOM.random() < 0.15:
                yield at + 2, ip, "GET", f"/api/search?q=word{RANDOM.randint(1, 60)}", 200
            at += RANDOM.expovariate(1 / 9)
        if RANDOM.random() < 0.2:
            for _ in range(RANDOM.choice([1, 1, 1, 2, 3])):
                yield at, ip, "POST", "/login", RANDOM.choice([200, 200, 401])
                at += 4


def requests():
    for number in range(PEOPLE):
        yield from person(f"203.0.{number // 200 + 113}.{number % 200 + 1}", RANDOM.choice([1, 1, 1, 2, 3]))
    # Forty people behind one address.
    for _ in range(40):
        yield from person("198.51.100.7", 2)
    # Apps that poll every half a minute while they are open.
    for number in range(25):
        begins = hour() * 3600
        for poll in range(RANDOM.randint(20, 200)):
            yield begins + poll * 30 + RANDOM.random(), f"192.0.2.{number + 10}", "GET", "/api/status", 200
    # A partner, five a second for four minutes.
    for number in range(1200):
        yield 2 * 3600 + number * 0.2 + RANDOM.random() * 0.1, "192.0.2.200", "GET", f"/api/products/{number % 400 + 1}", 200
    # The catalogue is copied, eight a second for ten minutes.
    for number in range(4800):
        yield 13 * 3600 + number / 8 + RANDOM.random() * 0.2, "198.51.100.99", "GET", f"/api/search?q=word{number % 60}", 200
    # Passwords are tried, two a second for a quarter of an hour.
    for number in range(1800):
        yield 4 * 3600 + number / 2 + RANDOM.random() * 0.2, "198.51.100.66", "POST", "/login", 401


def line(at, ip, method, path, status):
    when = (DAY + timedelta(seconds=at)).strftime("%d/%b/%Y:%H:%M:%S +0000")
    size = 300 + len(path) * 37 % 4000
    return f'{ip} - - [{when}] "{method} {path} HTTP/1.1" {status} {size} "-" "{BROWSER}"\n'


def main():
    day = [request for request in requests() if request[0] < 86_400]
    # A server writes a line when a request ends: a second or two may lie between.
    day.sort(key=lambda request: request[0] + RANDOM.random() * 1.5)
    with gzip.GzipFile(fileobj=sys.stdout.buffer, mode="wb", filename="", mtime=0) as out:
        out.writelines(line(*request).encode() for request in day)


if __name__ == "__main__":
    main()
