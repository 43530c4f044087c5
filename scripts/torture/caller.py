"""A caller in HTTP/1.1 that sends whatever it is given and reads answers to the letter."""

import re
import socket
import time
from typing import NamedTuple

from readers import Garbled, Partial, strict_chunks, strict_field, values

STATUS = re.compile(rb"HTTP/1\.[01] ([1-9]\d\d) [\t\x20-\x7e\x80-\xff]*")
ENDED, RESET, SILENT = "ended", "reset", "silent"


class Answer(NamedTuple):
    status: int
    fields: list
    body: bytes
    trailers: list = []
    interim: list = []
    """Whether it came to an end that the caller can be sure of."""
    whole: bool = True

    def all(self, name):
        return values(self.fields, name)


class Caller:
    """One connection."""

    def __init__(self, port, seconds=4):
        self.sock = socket.create_connection(("127.0.0.1", port), seconds)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.buffer, self.end, self.seconds = b"", None, seconds

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.sock.close()

    def send(self, *pieces, pause=0.03):
        """Sends pieces apart. Who is hung up on meanwhile still has an answer to read."""
        for index, piece in enumerate(pieces):
            if index:
                time.sleep(pause)
            try:
                self.sock.sendall(piece)
            except OSError:
                return

    def say_no_more(self):
        try:
            self.sock.shutdown(socket.SHUT_WR)
        except OSError:
            pass

    def more(self, seconds=None):
        """Reads more; False if the connection has ended or is silent, and `end` says which."""
        self.sock.settimeout(seconds or self.seconds)
        try:
            data = self.sock.recv(1 << 16)
        except TimeoutError:
            self.end = SILENT
            return False
        except OSError:
            self.end = RESET
            return False
        if not data:
            self.end = ENDED
            return False
        self.buffer += data
        return True

    def answer(self, method=b"GET"):
        """The next answer, or None if the connection ends before its head does."""
        interim = []
        while True:
            while (end := self.buffer.find(b"\r\n\r\n")) < 0:
                if not self.more():
                    if self.buffer:
                        raise Garbled(f"half a head: {self.buffer!r}")
                    return None
            lines, self.buffer = self.buffer[:end].split(b"\r\n"), self.buffer[end + 4:]
            match = STATUS.fullmatch(lines[0])
            if not match:
                raise Garbled(f"status line {lines[0]!r}")
            status, fields = int(match[1]), [strict_field(line) for line in lines[1:]]
            if status >= 200 or status == 101:
                break
            interim.append((status, fields))
        lengths, codings = values(fields, b"content-length"), values(fields, b"transfer-encoding")
        if len(lengths) > 1 or len(codings) > 1 or lengths and codings:
            raise Garbled("an answer with more than one framing")
        if status in (101, 204, 304) or method == b"HEAD":
            return Answer(status, fields, b"", [], interim)
        if codings:
            if codings != [b"chunked"]:
                raise Garbled(f"coding {codings!r}")
            while True:
                try:
                    body, trailers, end = strict_chunks(self.buffer, 0)
                except Partial:
                    if self.more():
                        continue
                    rest, self.buffer = self.buffer, b""
                    return Answer(status, fields, rest, [], interim, False)
                self.buffer = self.buffer[end:]
                return Answer(status, fields, body, trailers, interim)
        if lengths:
            while len(self.buffer) < int(lengths[0]):
                if not self.more():
                    rest, self.buffer = self.buffer, b""
                    return Answer(status, fields, rest, [], interim, False)
            body, self.buffer = self.buffer[:int(lengths[0])], self.buffer[int(lengths[0]):]
            return Answer(status, fields, body, [], interim)
        while self.more():
            pass
        body, self.buffer = self.buffer, b""
        return Answer(status, fields, body, [], interim, self.end == ENDED)

    def ends(self, seconds=2.5):
        """How the connection ends: ENDED, RESET or SILENT; None if something else comes before."""
        if not self.end and not self.buffer:
            self.more(seconds)
        return None if self.buffer else self.end


def fetch(port, target=b"/plain", host=b"plain.test"):
    """A plain request on a connection of its own."""
    with Caller(port) as caller:
        caller.send(b"GET " + target + b" HTTP/1.1\r\nHost: " + host + b"\r\nConnection: close\r\n\r\n")
        return caller.answer()
