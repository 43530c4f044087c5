"""The upstream of the answer cases: does what a case's script says, and plain requests it answers plainly."""

import socket
import struct
import threading
import time

from answer_cases import CLOSE, FLOOD, RESET
from readers import Garbled, Partial, strict_request


class Scripted:
    """A thread for each connection. `asked` has the connection and the target of each request."""

    def __init__(self):
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.port = self.listener.getsockname()[1]
        self.case, self.asked, self.open = None, [], set()
        self.lock = threading.Lock()
        threading.Thread(target=self.accept, daemon=True).start()

    def stop(self):
        self.listener.close()
        self.drop()

    def begin(self, case):
        """From here on this case's script holds, and no connection is left from before."""
        self.drop()
        self.case, self.asked = case, []

    def drop(self):
        with self.lock:
            for sock in self.open:
                try:
                    sock.shutdown(socket.SHUT_RDWR)
                except OSError:
                    pass
            self.open.clear()

    def accept(self):
        number = 0
        while True:
            try:
                sock, _ = self.listener.accept()
            except OSError:
                return
            number += 1
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with self.lock:
                self.open.add(sock)
            threading.Thread(target=self.serve, args=(sock, number), daemon=True).start()

    def serve(self, sock, number):
        raw = b""
        try:
            if self.case and self.case.greeting and not self.asked:
                sock.sendall(self.case.greeting)
            while True:
                try:
                    request, length = strict_request(raw)
                    raw = raw[length:]
                    target = request.line.split()[1]
                except Partial:
                    # An answer may come before the request has ended.
                    end = raw.find(b"\r\n\r\n")
                    if end >= 0 and raw.startswith(b"POST /odd") and b"content-length: 100000" in raw:
                        target, raw = b"/odd", b""
                    else:
                        data = sock.recv(1 << 16)
                        if not data:
                            return
                        raw += data
                        continue
                except Garbled:
                    self.asked.append((number, b"garbled"))
                    return
                self.asked.append((number, target))
                if target == b"/odd":
                    times = sum(each == b"/odd" for _, each in self.asked)
                    again = self.case.again if times > 1 else None
                    self.play(sock, again or self.case.script)
                else:
                    body = b"plain " + target
                    sock.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
        except OSError:
            pass
        finally:
            with self.lock:
                self.open.discard(sock)
            sock.close()

    def play(self, sock, script):
        before = b""
        for action in script:
            if action == CLOSE:
                sock.shutdown(socket.SHUT_RDWR)
                raise OSError
            elif action == RESET:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                raise OSError
            elif action == FLOOD:
                end = time.monotonic() + 6
                while time.monotonic() < end:
                    sock.sendall(before * 50)
            elif isinstance(action, bytes):
                sock.sendall(action)
                before = action
            else:
                time.sleep(action)
