"""What the cases run in: the gateway, or a peer of it, in front of an upstream."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

sys.path.append(str(Path(__file__).parent.parent / "shared"))
from addresses import held_ports, listening_ports

GATEWAY_YAML = """\
listen: 127.0.0.1:0
upstreams:
  app: {{ endpoints: ["http://127.0.0.1:{app}"], timeouts: {{ response: 3s }} }}
routes:
  - {{ path: /, upstream: app }}
server: {{ header_timeout: 1s, idle_timeout: 2s }}
logging: {{ access: off }}
"""

NGINX = """\
daemon off;
worker_processes 1;
pid {folder}/nginx.pid;
error_log {folder}/error.log crit;
events {{ worker_connections 512; }}
http {{
  access_log off;
  client_body_temp_path {folder}/a; proxy_temp_path {folder}/b; fastcgi_temp_path {folder}/c;
  uwsgi_temp_path {folder}/d; scgi_temp_path {folder}/e;
  client_header_timeout 1s;
  upstream app {{ server 127.0.0.1:{app}; keepalive 16; }}
  server {{
    listen 127.0.0.1:{listen}{http2};
    location / {{
      proxy_pass http://app;
      proxy_http_version 1.1;
      proxy_request_buffering off;
      proxy_read_timeout 3s;
      proxy_set_header Connection "";
      proxy_set_header Host $http_host;
    }}
  }}
}}
"""

HAPROXY = """\
global
  stats socket {folder}/s level admin
defaults
  mode http
  timeout connect 2s
  timeout client 10s
  timeout server 3s
  timeout http-request 1s
frontend f
  bind 127.0.0.1:{listen}{http2}
  default_backend b
backend b
  server app 127.0.0.1:{app}
"""


class Lab:
    """The gateway, or a peer. As a context it is stopped again."""

    def __init__(self, binary, folder, app, peer=None, http2=False):
        self.folder, self.peer = Path(folder), peer
        self.folder.mkdir(parents=True, exist_ok=True)
        self.port = held_ports(1)[0] if peer else None
        if peer:
            template, ending = {"nginx": (NGINX, " http2" * http2), "haproxy": (HAPROXY, " proto h2" * http2)}[peer]
            text = template.format(listen=self.port, app=app, folder=self.folder, http2=ending)
        else:
            text = GATEWAY_YAML.format(app=app)
        config = self.folder / "config"
        config.write_text(text)
        command = {
            None: [str(Path(binary).resolve()), "run", "--workers", "1", "-c", str(config)],
            "nginx": [shutil.which("nginx") or "nginx", "-p", str(self.folder), "-c", str(config)],
            "haproxy": [shutil.which("haproxy") or "haproxy", "-db", "-f", str(config)],
        }[peer]
        self.log = self.folder / "log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)

    def __enter__(self):
        if not self.peer:
            self.port, = listening_ports(self.process, self.log) or [None]
        end = time.monotonic() + 10
        while self.port and time.monotonic() < end and self.process.poll() is None:
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
                return self
            except OSError:
                time.sleep(0.02)
        self.__exit__()
        raise SystemExit(f"FAIL the gateway does not start:\n{self.log.read_text(errors='replace')}")

    def __exit__(self, *_):
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGTERM)
        try:
            self.process.wait(3)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()

    def trouble(self):
        """Whether it has ended or panicked."""
        if self.process.poll() is not None:
            return f"it ended with {self.process.returncode}"
        said = self.log.read_text(errors="replace")
        return "it panicked" if "panicked" in said else None

    def memory(self):
        """What it holds, in bytes."""
        pages = Path(f"/proc/{self.process.pid}/statm").read_text().split()[1]
        return int(pages) * os.sysconf("SC_PAGE_SIZE")
