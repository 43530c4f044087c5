"""The upstream of the request cases: keeps every byte that reaches it, and answers what it can read."""

import selectors
import socket
import threading
import time

from readers import Garbled, Partial, strict_request


class Peer:
    def __init__(self, sock):
        self.sock, self.raw, self.begun, self.ended = sock, bytearray(), 0, False


class Recorder:
    """One thread reads all connections, so `settled` can tell that nothing more is under way."""

    def __init__(self):
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=512)
        self.listener.setblocking(False)
        self.port = self.listener.getsockname()[1]
        self.peers, self.marks = [], {}
        self.lock, self.idle = threading.Lock(), threading.Event()
        self.waiting, self.stopping = False, False
        self.selector = selectors.DefaultSelector()
        self.selector.register(self.listener, selectors.EVENT_READ)
        self.wake, wake = socket.socketpair()
        self.selector.register(wake, selectors.EVENT_READ, "wake")
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def stop(self):
        self.stopping = True
        self.wake.send(b".")
        self.thread.join()
        for peer in self.peers:
            peer.sock.close()
        self.listener.close()

    # What was seen.

    def mark(self):
        """From here on it counts. Connections that have ended are forgotten."""
        self.settle()
        with self.lock:
            self.peers = [peer for peer in self.peers if not peer.ended]
            self.marks = {id(peer): len(peer.raw) for peer in self.peers}

    def seen(self):
        """What came since the mark, by connection."""
        self.settle()
        with self.lock:
            news = [bytes(peer.raw[self.marks.get(id(peer), 0):]) for peer in self.peers]
            return [raw for raw in news if raw]

    def settle(self):
        """Waits until everything that has arrived has been read."""
        for _ in range(2):
            self.idle.clear()
            self.waiting = True
            self.wake.send(b".")
            self.idle.wait(5)
            time.sleep(0.002)

    # The thread.

    def run(self):
        while not self.stopping:
            for key, _ in self.selector.select(0 if self.waiting else None):
                if key.data == "wake":
                    key.fileobj.recv(4096)
                elif key.fileobj is self.listener:
                    self.accept()
                else:
                    self.read(key.data)
            if self.waiting and not self.selector.select(0):
                self.waiting = False
                self.idle.set()

    def accept(self):
        try:
            sock, _ = self.listener.accept()
        except OSError:
            return
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        peer = Peer(sock)
        with self.lock:
            self.peers.append(peer)
        self.selector.register(sock, selectors.EVENT_READ, peer)

    def read(self, peer):
        try:
            data = peer.sock.recv(1 << 20)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            return self.end(peer)
        with self.lock:
            peer.raw += data
        while peer.begun < len(peer.raw):
            try:
                request, length = strict_request(bytes(peer.raw[peer.begun:]))
            except Partial:
                return
            except Garbled:
                peer.sock.send(b"HTTP/1.1 400 Bad Request\r\nconnection: close\r\ncontent-length: 0\r\n\r\n")
                return self.end(peer)
            peer.begun += length
            self.answer(peer, request)

    def answer(self, peer, request):
        """The answer says what it answers."""
        method, target, _ = request.line.split(b" ")
        body = b"" if method == b"HEAD" else b"seen " + target[:100]
        head = b"HTTP/1.1 200 OK\r\nx-target: " + target[:2000] + b"\r\ncontent-length: %d\r\n\r\n" % len(body)
        try:
            peer.sock.send(head + body)
        except OSError:
            self.end(peer)

    def end(self, peer):
        peer.ended = True
        self.selector.unregister(peer.sock)
        peer.sock.close()
