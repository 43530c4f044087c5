"""What the checks run in: a backend, gateway.yaml, the gateway itself, and callers who send known traffic."""

import hashlib
import http.client
import http.server
import os
import socket
import subprocess
import sys
import threading
from contextlib import contextmanager
from pathlib import Path

from kit import eventually, expect, start, stop
from page import Page

sys.path.append(str(Path(__file__).parent.parent / "shared"))
from addresses import held_ports

KEYS = {"acme": "key-of-acme", "globex": "key-of-globex", "initech": "key-of-initech"}

# Limits refill so slowly that what a check counts stays as it is. Callers say who they are, since all
# come from 127.0.0.1; each check has callers of its own.
GATEWAY_YAML = """\
listen: 127.0.0.1:{port}
admin: {admin}
identity:
  trusted_proxies: [127.0.0.1]
  user: {{ header: X-User-Id }}
  api_key:
    header: X-Api-Key
    keys:
{keys}
plans:
  free: {{ rate: 6/hour }}
  pro: {{ rate: 12/hour }}
default_plan: free
limits:
  - {{ name: per-user, by: user, rate: 1000/hour }}
upstreams:
  app: http://127.0.0.1:{app}
routes:
  - {{ name: login, path: /login, upstream: app, limits: [{{ name: login-attempts, by: ip, rate: 5/hour }}] }}
  - {{ name: search, path: /search, upstream: app, limits: [{{ name: search-rate, by: api_key, rate: plan }}] }}
  - name: watched
    path: /watched
    upstream: app
    limits: [{{ name: watched-shadow, by: ip, rate: 3/hour, mode: shadow }}]
  - {{ name: rest, path: /, upstream: app }}
"""


class Lab:
    """Everything that runs. As a context it stops all of it again."""

    offers = {"page", "gateway"}

    def __init__(self, binary, folder):
        self.binary, self.folder = Path(binary).resolve(), Path(folder)
        self.file, self.log = self.folder / "gateway.yaml", self.folder / "gateway.log"
        self.gateway, self.token = None, None

    def __enter__(self):
        expect(self.binary.exists(), f"there is no {self.binary}")
        self.backend = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Backend)
        threading.Thread(target=self.backend.serve_forever, daemon=True).start()
        # The gateway is started again on the same ports: pages that are open find it there.
        self.port, self.admin_port = held_ports(2)
        self.write()
        self.run_gateway()
        return self

    def __exit__(self, *_):
        self.stop_gateway()
        self.backend.shutdown()

    def write(self, change=lambda text: text):
        """gateway.yaml, with a change if one is given."""
        address = f"127.0.0.1:{self.admin_port}"
        admin = f"{{ address: {address}, token: {self.token} }}" if self.token else address
        keys = "\n".join(f"      - {{ id: {id}, sha256: {hashlib.sha256(key.encode()).hexdigest()}, "
                         f"plan: {'pro' if id == 'acme' else 'free'} }}" for id, key in KEYS.items())
        text = GATEWAY_YAML.format(port=self.port, admin=admin, app=self.backend.server_port, keys=keys)
        # Replaced at once: a gateway that watches never sees half of it.
        draft = self.folder / "draft.yaml"
        draft.write_text(change(text))
        draft.rename(self.file)

    def run_gateway(self):
        self.gateway = start([self.binary, "run", "-c", self.file.name], cwd=self.folder,
                             stdout=subprocess.DEVNULL, stderr=self.log.open("ab"))
        try:
            eventually("the gateway is ready", lambda: self.trouble() or (listens(self.port) and listens(self.admin_port)))
            expect(not self.trouble(), f"the gateway does not start: {self.log.read_text()[-600:]}")
        except BaseException:
            self.stop_gateway()
            raise

    def stop_gateway(self):
        if self.gateway:
            stop(self.gateway)

    @contextmanager
    def restarted(self, token):
        """The gateway with a token, and afterwards without one again."""
        try:
            self.begin_anew(token)
            yield
        finally:
            self.begin_anew(None)

    def begin_anew(self, token):
        self.stop_gateway()
        self.token = token
        self.write()
        self.run_gateway()

    def trouble(self):
        if self.gateway.poll() is not None:
            return f"it ended: {self.log.read_text(errors='replace')[-400:]}"
        return "it panicked" if "panicked" in self.log.read_text(errors="replace") else None

    @property
    def url(self):
        return f"http://127.0.0.1:{self.admin_port}/"

    def send(self, path, times=1, ip=None, user=None, key=None):
        """Sends requests as a caller; how they were answered."""
        headers = {"X-Forwarded-For": ip, "X-User-Id": user, "X-Api-Key": KEYS.get(key)}
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        statuses = []
        for _ in range(times):
            connection.request("GET", path, headers={name: value for name, value in headers.items() if value})
            answer = connection.getresponse()
            answer.read()
            statuses.append(answer.status)
        connection.close()
        return statuses

    def open(self, hash="", credentials="", **how):
        return Page(self.chromium.open(self.url.replace("//", f"//{credentials}") + hash, **how))


class Visited:
    """A dashboard that runs already: nothing is known of its gateway, and none is started."""

    offers = {"page"}

    def __init__(self, url):
        self.url = url if url.endswith("/") else f"{url}/"

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def trouble(self):
        return None

    def open(self, hash="", **how):
        return Page(self.chromium.open(self.url + hash, **how))


class Backend(http.server.BaseHTTPRequestHandler):
    """Says 200 to everything."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_GET(self):
        self.send_response(200)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"ok")

    def log_message(self, *_):
        pass


def listens(port):
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
        return True
    except OSError:
        return False


def without_proxies():
    """Nothing here goes beyond 127.0.0.1, whatever the environment says."""
    for name in [name for name in os.environ if name.lower().endswith("_proxy")]:
        del os.environ[name]
