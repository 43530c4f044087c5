"""A caller in HTTP/2 that sends whatever frames it is given, and notes what comes back."""

import select
import socket
import struct
import time

from hpack import Decoder

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(10)
END_STREAM = ACK = 0x1
END_HEADERS, PADDED, WITH_PRIORITY = 0x4, 0x8, 0x20
CODES = ["NO_ERROR", "PROTOCOL_ERROR", "INTERNAL_ERROR", "FLOW_CONTROL_ERROR", "SETTINGS_TIMEOUT", "STREAM_CLOSED",
         "FRAME_SIZE_ERROR", "REFUSED_STREAM", "CANCEL", "COMPRESSION_ERROR", "CONNECT_ERROR", "ENHANCE_YOUR_CALM",
         "INADEQUATE_SECURITY", "HTTP_1_1_REQUIRED"]


def frame(kind, payload=b"", flags=0, stream=0):
    return struct.pack(">BHBBL", len(payload) >> 16, len(payload) & 0xFFFF, kind, flags, stream) + payload


def settings(*pairs):
    return frame(SETTINGS, b"".join(struct.pack(">HL", *pair) for pair in pairs))


def reset(stream, code=8):
    return frame(RST_STREAM, struct.pack(">L", code), 0, stream)


def window(increment, stream=0):
    return frame(WINDOW_UPDATE, struct.pack(">L", increment), 0, stream)


def block(fields):
    """A header block without anything that would need to be remembered."""
    return b"".join(literal(name, value) for name, value in fields)


def literal(name, value):
    return b"\0" + string(name) + string(value)


def string(text):
    return integer(len(text), 7) + text


def integer(value, prefix, first=0):
    limit = (1 << prefix) - 1
    if value < limit:
        return bytes([first | value])
    out, value = bytearray([first | limit]), value - limit
    while value >= 128:
        out.append(0x80 | value & 0x7F)
        value >>= 7
    return bytes(out) + bytes([value])


def request(method=b"GET", path=b"/a", authority=b"a.test", *more):
    return [(b":method", method), (b":scheme", b"http"), (b":path", path), (b":authority", authority), *more]


def headers(fields, stream=1, end=True, ended=True):
    """HEADERS, and CONTINUATION where a frame is not enough. `fields`: a list, or a block as it is."""
    whole = fields if isinstance(fields, bytes) else block(fields)
    pieces = [whole[at:at + 16384] for at in range(0, len(whole), 16384)] or [b""]
    out = []
    for index, piece in enumerate(pieces):
        flags = END_HEADERS if ended and index == len(pieces) - 1 else 0
        if index == 0:
            out.append(frame(HEADERS, piece, flags | (END_STREAM if end else 0), stream))
        else:
            out.append(frame(CONTINUATION, piece, flags, stream))
    return b"".join(out)


class Stream:
    def __init__(self):
        self.status, self.fields, self.body, self.ended, self.reset, self.interim = None, [], b"", False, None, []


class Caller2:
    """One connection."""

    def __init__(self, port, preface=PREFACE, *pairs):
        self.sock = socket.create_connection(("127.0.0.1", port), 5)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.buffer, self.streams, self.counts = bytearray(), {}, {}
        self.goaway, self.closed, self.pongs, self.decoder = None, None, set(), Decoder()
        self.decoder.max_header_list_size = 1 << 20
        self.settings = {}
        self.sent, self.left = 0, b""
        if preface:
            self.push(preface + settings(*pairs))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.sock.close()

    def stream(self, number=1):
        return self.streams.setdefault(number, Stream())

    @property
    def ended(self):
        return self.closed is not None or self.goaway is not None

    def ending(self):
        """How it ended, in words."""
        if self.goaway is not None:
            return f"GOAWAY {CODES[self.goaway] if self.goaway < len(CODES) else self.goaway}"
        return self.closed or "open"

    def push(self, data, reading=True, until=5.0):
        """Sends, and reads meanwhile unless told not to. Says whether all was sent."""
        view, end = memoryview(data), time.monotonic() + until
        self.sock.setblocking(False)
        while view and self.closed is None and time.monotonic() < end:
            readable, writable, _ = select.select([self.sock] if reading else [], [self.sock], [], 0.2)
            if readable:
                self.take()
            if writable and self.closed is None:
                try:
                    count = self.sock.send(view[:1 << 16])
                    view, self.sent = view[count:], self.sent + count
                except BlockingIOError:
                    pass
                except OSError:
                    # What came before it is still to be read.
                    self.wait(lambda: self.closed is not None, 0.5)
                    self.closed = self.closed or "reset"
        return not view

    def wait(self, done, seconds=3.0):
        """Reads until something is so, or the connection has ended; says whether it is so."""
        end = time.monotonic() + seconds
        self.sock.setblocking(False)
        while not done() and self.closed is None:
            left = end - time.monotonic()
            if left <= 0:
                break
            if select.select([self.sock], [], [], left)[0]:
                self.take()
        return done()

    def take(self):
        try:
            data = self.sock.recv(1 << 18)
        except BlockingIOError:
            return
        except OSError:
            self.closed = "reset"
            return
        if not data:
            self.closed = "closed"
            return
        self.buffer += data
        at = 0
        while len(self.buffer) - at >= 9:
            length = int.from_bytes(self.buffer[at:at + 3], "big")
            if len(self.buffer) - at < 9 + length:
                break
            kind, flags = self.buffer[at + 3], self.buffer[at + 4]
            stream = int.from_bytes(self.buffer[at + 5:at + 9], "big") & 0x7FFFFFFF
            self.heard(kind, flags, stream, bytes(self.buffer[at + 9:at + 9 + length]))
            at += 9 + length
        del self.buffer[:at]

    def heard(self, kind, flags, stream, payload):
        self.counts[kind] = self.counts.get(kind, 0) + 1
        if kind == HEADERS:
            fields = [(bytes(name), bytes(value)) for name, value in self.decoder.decode(payload, raw=True)]
            of = self.stream(stream)
            if of.status is None:
                status = int(dict(fields)[b":status"])
                if status < 200:
                    of.interim.append(status)
                    return
                of.status, of.fields = status, fields
            of.ended |= bool(flags & END_STREAM)
        elif kind == DATA:
            self.stream(stream).body += payload
            self.stream(stream).ended |= bool(flags & END_STREAM)
        elif kind == RST_STREAM:
            self.stream(stream).reset = int.from_bytes(payload, "big")
            self.stream(stream).ended = True
        elif kind == GOAWAY:
            self.goaway = int.from_bytes(payload[4:8], "big")
        elif kind == PING and flags & ACK:
            self.pongs.add(payload)
        elif kind == SETTINGS and not flags & ACK:
            self.settings.update(struct.iter_unpack(">HL", payload))
            try:
                self.sock.send(frame(SETTINGS, flags=ACK))
            except OSError:
                pass

    def answers(self, mark=b"are you?", seconds=3.0):
        """Whether it goes on: a PING is answered."""
        self.push(frame(PING, mark))
        return self.wait(lambda: mark in self.pongs, seconds)


def probe(port, path=b"/other", seconds=4.0):
    """A plain request on a connection of its own: the stream, and how long it took."""
    began = time.monotonic()
    with Caller2(port) as caller:
        caller.push(headers(request(path=path, authority=b"other.test")))
        caller.wait(lambda: caller.stream(1).ended or caller.ended, seconds)
        return caller.stream(1), time.monotonic() - began
