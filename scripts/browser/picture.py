"""Takes the picture of the dashboard that the docs show: `python picture.py BINARY FOLDER OUT`.

A gateway with a few routes, plans and limits, and some minutes of traffic by callers of different habits.
"""

import math
import random
import sys
import threading
import time
from pathlib import Path

from chromium import Chromium
from lab import KEYS, Lab, without_proxies

SECONDS = 170

ROUTES = """
routes:
  - { name: login, path: /login, upstream: app, limits: [{ name: login-attempts, by: ip, rate: 30/minute }] }
  - name: search
    path: /search
    upstream: app
    limits:
      - { name: search-rate, by: api_key, rate: plan }
      - { name: search-tighter, by: api_key, rate: 900/minute, mode: shadow }
  - { name: rest, path: /, upstream: app }
"""


def scene(text):
    head = text.split("routes:\n")[0]
    head = head.replace("6/hour", "600/minute").replace("12/hour", "3000/minute")
    return head.replace("per-user, by: user, rate: 1000/hour", "per-ip, by: ip, rate: 2000/minute") + ROUTES.strip() + "\n"


def habits():
    """Who asks for what, and how long they pause: most are calm, one scrapes, one tries passwords."""
    for number in range(12):
        yield dict(path="/", ip=f"203.0.113.{number + 10}", user=f"user-{number}"), 0.02
    for number in range(6):
        yield dict(path="/search", ip=f"198.51.100.{number + 1}", key="acme"), 0.1
    yield dict(path="/search", ip="203.0.113.66", key="globex"), 0.05
    yield dict(path="/login", ip="192.0.2.44"), 0.4


def ask(lab, who, pause, until):
    who = dict(who)
    path = who.pop("path")
    while time.monotonic() < until:
        # It comes and goes, as people do.
        calm = 1.4 + math.sin(time.monotonic() / 15) + 0.5 * random.random()
        lab.send(path, times=random.randint(1, 10), **who)
        time.sleep(pause * calm * 5)


def main():
    binary, folder, out = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
    without_proxies()
    with Chromium(folder) as chromium, Lab(binary, folder) as lab:
        lab.chromium = chromium
        lab.write(scene)
        time.sleep(1)
        page = lab.open(width=1280, height=900)
        until = time.monotonic() + SECONDS
        threads = [threading.Thread(target=ask, args=(lab, who, pause, until), daemon=True) for who, pause in habits()]
        for thread in threads:
            thread.start()
        time.sleep(SECONDS - 5)
        out.parent.mkdir(parents=True, exist_ok=True)
        for theme in ["light", "dark"]:
            page.tab.look(1280, 900, theme)
            time.sleep(1)
            page.tab.screenshot(out.with_name(f"{out.stem}-{theme}.png"))
        for thread in threads:
            thread.join()


if __name__ == "__main__":
    main()
