"""What the checks run in: certificates, the backends, gateway.yaml and the gateway itself."""

import json
import os
import subprocess
import sys
from pathlib import Path

from kit import start, stop

HERE = Path(__file__).parent
sys.path.append(str(HERE.parent / "shared"))
from addresses import held_ports, listening_ports

GATEWAY_YAML = """\
listen:
  - 127.0.0.1:0
  - address: 127.0.0.1:0
    tls:
      certificates:
        - {{ cert: localhost.pem, key: localhost.key }}
        - {{ cert: example.pem, key: example.key }}
  - address: 127.0.0.1:0
    tls:
      certificates:
        - {{ cert: localhost.pem, key: localhost.key }}
      client_ca: clients.pem
  - address: 127.0.0.1:0
    proxy_protocol: true

upstreams:
  app: http://127.0.0.1:{app}
  grpc: {{ endpoints: ["http://127.0.0.1:{grpc}"], http2: true }}
  grpcs: {{ endpoints: ["https://localhost:{grpcs}"], ca: ca.pem, http2: true }}
  ws: {{ endpoints: ["http://127.0.0.1:{ws}"], timeouts: {{ tunnel: 5m }} }}
  ws-hasty: {{ endpoints: ["http://127.0.0.1:{ws}"], timeouts: {{ tunnel: 1s }} }}
  gone: {{ endpoints: ["http://127.0.0.1:{gone}"], http2: true }}

# No route for everything: what is not named here is not there. A caller of the limited routes who
# sends X-Test may come once an hour for each value of it, so that checks do not disturb each other.
routes:
  - {{ path: /echo/*, upstream: app }}
  - {{ path: /upload, upstream: app, max_body_bytes: none }}
  - {{ path: /download, upstream: app }}
  - {{ path: /sse, upstream: app }}
  - {{ path: /early, upstream: app }}
  - {{ path: /longpoll, upstream: app }}
  - {{ path: /trailers, upstream: app }}
  - {{ path: /slow, upstream: app }}
  - {{ path: /limited, upstream: app, limits: [{{ by: "header:X-Test", rate: 1/hour }}] }}
  - {{ path: /test.Service/*, upstream: grpc }}
  - {{ path: /test.Secure/*, upstream: grpcs }}
  - {{ path: /test.Limited/*, upstream: grpc, limits: [{{ by: "header:X-Test", rate: 1/hour }}] }}
  - {{ path: /test.Gone/*, upstream: gone }}
  - {{ path: /ws/*, upstream: ws }}
  - {{ path: /ws-hasty/*, upstream: ws-hasty }}
  - {{ path: /ws-limited/*, upstream: ws, limits: [{{ by: "header:X-Test", rate: 1/hour }}] }}
"""


class Lab:
    """Everything that runs. As a context it stops all of it again."""

    def __init__(self, binary, folder):
        self.binary, self.folder, self.processes = Path(binary).resolve(), Path(folder), []
        self.log = self.folder / "gateway.log"

    def __enter__(self):
        try:
            self.set_up()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for process in reversed(self.processes):
            stop(process)

    def set_up(self):
        certificates(self.folder)
        backends = self.start([sys.executable, HERE / "backends.py", self.folder],
                              stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.ports = json.loads(backends.stdout.readline())
        self.ports["gone"], = held_ports(1)
        (self.folder / "gateway.yaml").write_text(GATEWAY_YAML.format(**self.ports))
        self.gateway = self.start([self.binary, "run", "-c", "gateway.yaml"], cwd=self.folder,
                                  stdout=subprocess.DEVNULL, stderr=self.log.open("wb"))

    def start(self, command, **options):
        self.processes.append(start(command, **options))
        return self.processes[-1]

    def wait_until_ready(self):
        """Whether every listener takes connections; where they are is known then."""
        ports = listening_ports(self.gateway, self.log)
        self.ports |= zip(("plain", "tls", "mtls", "proxied"), ports)
        return len(ports) == 4

    def url(self, listener):
        scheme = "https" if listener in ("tls", "mtls") else "http"
        return f"{scheme}://localhost:{self.ports[listener]}"


def certificates(folder):
    """A root, an intermediate that signs the servers' certificates, and two authorities of callers."""
    authority = "basicConstraints=critical,CA:TRUE\nkeyUsage=critical,keyCertSign,cRLSign"
    leaf = "basicConstraints=critical,CA:FALSE\nkeyUsage=critical,digitalSignature\nextendedKeyUsage={}"
    server = leaf.format("serverAuth") + "\nsubjectAltName="

    def issue(name, subject, extensions, by=None):
        (folder / f"{name}.ext").write_text(extensions)
        openssl(folder, "req", "-new", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes",
                "-subj", f"/CN={subject}", "-keyout", f"{name}.key", "-out", f"{name}.csr")
        signer = ["-CA", f"{by}.pem", "-CAkey", f"{by}.key", "-CAcreateserial"] if by else ["-signkey", f"{name}.key"]
        openssl(folder, "x509", "-req", "-in", f"{name}.csr", "-days", "90", "-sha256", *signer,
                "-extfile", f"{name}.ext", "-out", f"{name}.pem")

    issue("ca", "Test Root", authority)
    issue("intermediate", "Test Intermediate", authority, by="ca")
    issue("localhost", "localhost", server + "DNS:localhost", by="intermediate")
    issue("example", "*.example.test", server + "DNS:*.example.test", by="intermediate")
    issue("clients", "Test Callers", authority)
    issue("known", "a known caller", leaf.format("clientAuth"), by="clients")
    issue("strangers", "Test Strangers", authority)
    issue("unknown", "an unknown caller", leaf.format("clientAuth"), by="strangers")
    for name in ("localhost", "example"):
        with (folder / f"{name}.pem").open("a") as chain:
            chain.write((folder / "intermediate.pem").read_text())


def openssl(folder, *arguments):
    done = subprocess.run(["openssl", *arguments], cwd=folder, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"openssl {arguments[0]}: {done.stderr}")


def without_proxies():
    """Nothing here goes beyond 127.0.0.1, whatever the environment says."""
    for name in [name for name in os.environ if name.lower().endswith("_proxy")]:
        del os.environ[name]
