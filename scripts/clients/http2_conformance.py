#!/usr/bin/env python3
"""Checks whether an HTTP/2 server keeps to RFC 7540 and RFC 7541, in 147 cases.

Every case opens its own connection, sends something allowed or something forbidden, and says which
answers pass. Cases have the numbers of h2spec's, run as `h2spec -S`, and pass on the same answers,
so that the two scores can be compared; what h2spec makes of a TCP reset (see RESET) included.

    http2_conformance.py --host 127.0.0.1 --port 8443 --tls --path /

One line for each case that fails, then how many passed; the exit status is 1 if any failed. The path
should answer GET, HEAD and POST, and GET with at least 5 bytes of body: cases that need a longer body
than there is are skipped. Nothing beyond Python's own library is needed.

Frames that belong together reach the server together, where the system can do that (Linux), so that
a verdict does not hang on who is quicker; `--one-by-one` leaves it to chance, as h2spec does.
"""

import argparse
import socket
import ssl
import struct
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from enum import IntEnum
from typing import Callable, NamedTuple

# ---------------------------------------------------------------------------------------- the protocol

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
WINDOW = 65535
LARGEST_FRAME = 2**24 - 1


class Frame(IntEnum):
    DATA = 0
    HEADERS = 1
    PRIORITY = 2
    RST_STREAM = 3
    SETTINGS = 4
    PUSH_PROMISE = 5
    PING = 6
    GOAWAY = 7
    WINDOW_UPDATE = 8
    CONTINUATION = 9


DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = Frame
ON_CONNECTION = {SETTINGS, PING, GOAWAY}
EITHER = {WINDOW_UPDATE}
LENGTHS = {PRIORITY: 5, RST_STREAM: 4, PING: 8, WINDOW_UPDATE: 4}

ACK = END_STREAM = 0x1
END_HEADERS = 0x4
PADDED = 0x8
WITH_PRIORITY = 0x20


class Code(IntEnum):
    NO_ERROR = 0
    PROTOCOL_ERROR = 1
    INTERNAL_ERROR = 2
    FLOW_CONTROL_ERROR = 3
    SETTINGS_TIMEOUT = 4
    STREAM_CLOSED = 5
    FRAME_SIZE_ERROR = 6
    REFUSED_STREAM = 7
    CANCEL = 8
    COMPRESSION_ERROR = 9
    CONNECT_ERROR = 10
    ENHANCE_YOUR_CALM = 11
    INADEQUATE_SECURITY = 12
    HTTP_1_1_REQUIRED = 13


HEADER_TABLE_SIZE, ENABLE_PUSH, MAX_CONCURRENT_STREAMS, INITIAL_WINDOW_SIZE, MAX_FRAME_SIZE, MAX_HEADER_LIST_SIZE = \
    range(1, 7)


def hpack_integer(value, prefix, first=0):
    limit = (1 << prefix) - 1
    if value < limit:
        return bytes([first | value])
    encoded, value = bytearray([first | limit]), value - limit
    while value >= 128:
        encoded.append(0x80 | value & 0x7F)
        value >>= 7
    return bytes(encoded) + bytes([value])


def hpack_string(text):
    return hpack_integer(len(text), 7) + text.encode()


class Encoder:
    """Indexes what it can and lets every literal enter the dynamic table; codes nothing with Huffman."""

    STATIC = {
        (":method", "GET"): 2, (":method", "POST"): 3, (":path", "/"): 4,
        (":scheme", "http"): 6, (":scheme", "https"): 7, (":status", "200"): 8,
    }
    NAMES = {":authority": 1, ":method": 2, ":path": 4, ":scheme": 6, ":status": 8, "content-length": 28}
    FIRST_DYNAMIC = 62
    TABLE_SIZE = 4096

    def __init__(self):
        self.entries = []

    def encode(self, fields):
        return b"".join(self.field(*field) for field in fields)

    def field(self, name, value):
        index = self.STATIC.get((name, value))
        if index is None and (name, value) in self.entries:
            index = self.FIRST_DYNAMIC + self.entries.index((name, value))
        if index is not None:
            return hpack_integer(index, 7, 0x80)
        self.entries.insert(0, (name, value))
        while sum(len(n) + len(v) + 32 for n, v in self.entries) > self.TABLE_SIZE:
            self.entries.pop()
        index = self.NAMES.get(name, 0)
        return hpack_integer(index, 6, 0x40) + (b"" if index else hpack_string(name)) + hpack_string(value)


# -------------------------------------------------------------------------------------- what comes back

# How a connection ends. A reset is not taken for a close: data that the server sent before it may be
# lost to the client, and h2spec counts it as an error too.
CLOSED, RESET, TIMEOUT, BROKEN = "the connection closes", "the connection is reset", "timeout", "broken"


class Event(NamedTuple):
    """A frame, or one of the ways in which a connection ends."""

    kind: object
    flags: int = 0
    stream: int = 0
    payload: bytes = b""

    @property
    def code(self):
        at = {RST_STREAM: 0, GOAWAY: 4}.get(self.kind)
        return None if at is None else int.from_bytes(self.payload[at:at + 4], "big")

    def has(self, flag):
        return bool(self.flags & flag)

    def __str__(self):
        if isinstance(self.kind, str):
            return self.kind + (f": {self.payload.decode()}" if self.payload else "")
        name = self.kind.name if isinstance(self.kind, Frame) else f"type {self.kind}"
        facts = [f"stream {self.stream}"] if self.stream else []
        if self.code is not None:
            facts.append(code_name(self.code))
        elif self.kind in (SETTINGS, PING) and self.has(ACK):
            facts.append("ACK")
        elif self.kind in (DATA, HEADERS) and self.has(END_STREAM):
            facts.append("END_STREAM")
        if self.kind == DATA:
            facts.append(f"{len(self.payload)} bytes")
        return f"{name}({', '.join(facts)})" if facts else name

    def fault(self):
        """What makes a frame from the server unreadable, if anything does."""
        if self.kind not in Frame.__members__.values():
            return None
        if len(self.payload) != LENGTHS.get(self.kind, len(self.payload)) \
                or self.kind == SETTINGS and len(self.payload) % 6 or self.kind == GOAWAY and len(self.payload) < 8:
            return f"{self.kind.name} of {len(self.payload)} bytes"
        if self.kind not in EITHER and (self.stream == 0) != (self.kind in ON_CONNECTION):
            return f"{self.kind.name} on stream {self.stream}"
        return None


def code_name(code):
    return Code(code).name if code in Code.__members__.values() else f"code {code}"


def either(codes):
    return " or ".join(code.name for code in codes)


class Failed(Exception):
    """The server did not do what the case asks for."""

    def __init__(self, wanted, seen):
        came = ", ".join(str(event) for event in seen[-6:]) or "nothing more"
        super().__init__(f"expected {wanted}; came {'…, ' if len(seen) > 6 else ''}{came}")


class Skipped(Exception):
    """The case says nothing about this server."""


class Target(NamedTuple):
    host: str
    port: int
    tls: bool
    path: str
    timeout: float
    one_by_one: bool

    def connect(self):
        sock = socket.create_connection((self.host, self.port), self.timeout)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if not self.tls:
            return sock
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        context.set_alpn_protocols(["h2"])
        sock = context.wrap_socket(sock, server_hostname=self.host)
        if sock.selected_alpn_protocol() != "h2":
            sock.close()
            raise Failed("h2 to be agreed on by ALPN", [])
        return sock

    def request(self, method="GET"):
        usual = self.port == (443 if self.tls else 80)
        return [
            (":method", method),
            (":scheme", "https" if self.tls else "http"),
            (":path", self.path),
            (":authority", self.host if usual else f"{self.host}:{self.port}"),
        ]

    def body_length(self):
        """How many bytes of DATA a plain GET is answered with."""
        length = 0
        with Connection(self) as c:
            c.handshake()
            c.request()
            while True:
                event = c.read()
                if event.kind == DATA:
                    length += len(event.payload)
                if event.kind in (DATA, HEADERS) and event.has(END_STREAM):
                    return length
                if c.ended:
                    raise Failed("a whole answer to GET", [event])


class Connection:
    """One connection: frames go out as they are asked for, legal or not, and `expect_…` judges the answer."""

    def __init__(self, target):
        self.target = target
        self.sock = target.connect()
        self.started = time.monotonic()
        self.buffer = b""
        self.ended = False
        self.encoder = Encoder()
        self.settings = {}
        self.windows = {0: WINDOW}
        self.log = []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.sock.close()

    # Sending. An error here is no verdict: what the server did before it is still to be read.

    def hold(self, held):
        """What is sent leaves together, before the next read, so that no answer comes between two frames."""
        if hasattr(socket, "TCP_CORK") and not self.target.one_by_one:
            self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CORK, held)

    def send(self, *chunks):
        try:
            self.sock.settimeout(self.target.timeout)
            self.hold(True)
            for chunk in chunks:
                self.sock.sendall(chunk)
        except OSError as error:
            self.log.append(f"> {type(error).__name__}")

    def frame(self, kind, payload=b"", flags=0, stream=0, apart=False):
        """`apart`: head and payload in writes (and TLS records) of their own, as a server might not expect."""
        if len(payload) > LARGEST_FRAME:
            self.log.append(f"> nothing: no frame has room for {len(payload)} bytes")
            return
        self.log.append(f"> {Event(kind, flags, stream & 0x7FFFFFFF, payload)}")
        head = struct.pack(">BHBBL", len(payload) >> 16, len(payload) & 0xFFFF, kind, flags, stream)
        self.send(*[head, payload] if apart else [head + payload])

    def data(self, payload=b"test", stream=1, end=True, padding=None):
        flags = END_STREAM if end else 0
        if padding is not None:
            flags, payload = flags | PADDED, bytes([padding]) + payload + bytes(padding)
        self.frame(DATA, payload, flags, stream)

    def headers(self, fields, stream=1, end=True, end_headers=True, padding=0, priority=b""):
        """`fields`: a list to be encoded, or a header block as it is."""
        block = priority + self.block(fields)
        flags = END_STREAM * end | END_HEADERS * end_headers | WITH_PRIORITY * bool(priority)
        if padding:
            flags, block = flags | PADDED, bytes([padding]) + block + bytes(padding)
        self.frame(HEADERS, block, flags, stream)

    def request(self, method="GET", extra=(), **how):
        self.headers(self.target.request(method) + list(extra), **how)

    def continuation(self, fields, stream=1, end_headers=True):
        self.frame(CONTINUATION, self.block(fields), END_HEADERS * end_headers, stream)

    def priority(self, stream=1, **what):
        self.frame(PRIORITY, depends(**what), stream=stream)

    def reset(self, stream=1, code=Code.CANCEL):
        self.frame(RST_STREAM, struct.pack(">L", code), stream=stream)

    def set(self, *settings):
        self.frame(SETTINGS, b"".join(struct.pack(">HL", *setting) for setting in settings))

    def ping(self, payload=bytes(8), flags=0):
        self.frame(PING, payload, flags)

    def goaway(self, code, debug=b""):
        self.frame(GOAWAY, struct.pack(">LL", 0, code) + debug)

    def window_update(self, increment, stream=0):
        self.frame(WINDOW_UPDATE, struct.pack(">L", increment), stream=stream)

    def block(self, fields):
        return fields if isinstance(fields, bytes) else self.encoder.encode(fields)

    # Receiving.

    def read(self):
        """The next event; waits for it as long as the time-out says, and for all of them ten times as long."""
        deadline = min(time.monotonic(), self.started + 9 * self.target.timeout) + self.target.timeout
        try:
            self.hold(False)
            head = self.take(9, deadline)
            length = head[0] << 16 | head[1] << 8 | head[2]
            payload = self.take(length, deadline, inside=True)
            kind = Frame(head[3]) if head[3] in Frame.__members__.values() else head[3]
            event = Event(kind, head[4], struct.unpack(">L", head[5:])[0] & 0x7FFFFFFF, payload)
            if event.fault():
                event = Event(BROKEN, payload=event.fault().encode())
        except TimeoutError:
            event = Event(TIMEOUT)
        except EOFError as error:
            event = Event(BROKEN, payload=str(error).encode()) if error.args else Event(CLOSED)
        except ConnectionResetError:
            event = Event(RESET)
        except OSError as error:
            event = Event(BROKEN, payload=str(error).encode())
        self.ended = isinstance(event.kind, str)
        self.log.append(f"< {event}")
        if event.kind == DATA:
            self.give_back(len(event.payload), event.stream)
        return event

    def take(self, size, deadline, inside=False):
        while len(self.buffer) < size:
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError
            self.sock.settimeout(left)
            chunk = self.sock.recv(65536)
            if not chunk:
                raise EOFError("closed inside a frame") if inside or self.buffer else EOFError()
            self.buffer += chunk
        taken, self.buffer = self.buffer[:size], self.buffer[size:]
        return taken

    def give_back(self, size, stream):
        """Opens a window again once it is used up, so that a long answer comes to its end."""
        for owner in (stream, 0):
            left = self.windows.get(owner, WINDOW) - size
            if left <= 0:
                self.window_update(WINDOW - left, owner)
                left = WINDOW
            self.windows[owner] = left

    def handshake(self):
        self.send(PREFACE)
        self.set((INITIAL_WINDOW_SIZE, WINDOW))
        seen, ours, theirs = [], False, False
        while not (ours and theirs):
            seen.append(self.read())
            if self.ended:
                raise Failed("SETTINGS, and ACK of the client's", seen)
            if seen[-1].kind == SETTINGS and seen[-1].has(ACK):
                ours = True
            elif seen[-1].kind == SETTINGS:
                theirs = True
                self.settings.update(struct.iter_unpack(">HL", seen[-1].payload))
                self.frame(SETTINGS, flags=ACK)

    # Judging.

    def until(self, wanted, accept, decides=None):
        """Reads on until an event is accepted. The first frame of the type that `decides` is the last chance."""
        seen = []
        while not self.ended:
            event = self.read()
            if accept(event):
                return
            seen.append(event)
            if event.kind == decides:
                break
        raise Failed(wanted, seen)

    def expect_first(self, kind, wanted, accept=lambda event: True):
        self.until(wanted, lambda event: event.kind == kind and accept(event), decides=kind)

    def expect_connection_error(self, *codes):
        self.until(f"GOAWAY({either(codes)}) or a close",
                   lambda event: event.kind == CLOSED or event.kind == GOAWAY and event.code in codes)

    def expect_stream_error(self, *codes):
        self.until(f"RST_STREAM or GOAWAY({either(codes)}) or a close",
                   lambda event: event.kind == CLOSED or event.kind in (GOAWAY, RST_STREAM) and event.code in codes)

    def expect_close(self):
        self.until("a close", lambda event: event.kind == CLOSED)

    def expect_end_of_stream(self):
        self.until("the end of the answer", lambda event:
                   event.kind in (DATA, HEADERS) and event.has(END_STREAM)
                   or event.kind == RST_STREAM and event.code == Code.NO_ERROR)

    def expect_answer(self, stream=1):
        self.expect_first(HEADERS, f"HEADERS(stream {stream})", lambda event: event.stream == stream)

    def expect_settings_ack(self):
        self.expect_first(SETTINGS, "SETTINGS(ACK)", lambda event: event.has(ACK))

    def expect_data(self, length):
        self.expect_first(DATA, f"DATA({length} bytes)", lambda event: len(event.payload) == length)

    def expect_alive(self, payload=bytes(8)):
        """The server answers a PING: whatever came before it was let pass."""
        self.ping(payload)
        self.expect_first(PING, "PING(ACK) with the same payload",
                          lambda event: event.has(ACK) and event.payload == payload)

    def expect_alive_or_close(self, payload):
        self.ping(payload)
        self.until("PING(ACK) with the same payload, or a close", lambda event:
                   event.kind == CLOSED or event.kind == PING and event.has(ACK) and event.payload == payload)


def depends(on=0, weight=255, exclusive=False):
    """The five bytes of a priority."""
    return struct.pack(">LB", exclusive << 31 | on, weight)


def filler(count):
    """Fields that take much room: each fills most of a dynamic table."""
    return [(f"x-dummy{i}", "x" * 4000) for i in range(count)]


# ------------------------------------------------------------------------------------------- the cases


class Case(NamedTuple):
    section: str
    number: int
    title: str
    body: int
    handshake: bool
    check: Callable

    @property
    def id(self):
        return f"{self.section}/{self.number}"

    def within(self, part):
        """Is this case, or a section that it is in, called `part`?"""
        return part == self.id or self.section == part or self.section.startswith((part + ".", part + "/"))


CASES = []


def case(section, title, body=0, handshake=True):
    """Registers a case. `body`: how long an answer to GET must be for the case to mean anything."""
    def register(check):
        number = 1 + sum(known.section == section for known in CASES)
        CASES.append(Case(section, number, title, body, handshake, check))
        return check
    return register


def answered(section, title, send):
    """A request that is sent in one go, and must be answered."""
    @case(section, f"{title} is answered")
    def _(c):
        send(c)
        c.expect_answer()


def breaks(section, title, send, *codes, handshake=True):
    """Something sent in one go, for which the server must give up the connection."""
    codes = codes or (Code.PROTOCOL_ERROR,)

    @case(section, f"{title} is {either(codes)} of the connection", handshake=handshake)
    def _(c):
        send(c)
        c.expect_connection_error(*codes)


def resets(section, title, send, *codes):
    """Something sent in one go, for which the server must give up the stream, or the connection."""
    codes = codes or (Code.PROTOCOL_ERROR,)

    @case(section, f"{title} is {either(codes)}")
    def _(c):
        send(c)
        c.expect_stream_error(*codes)


# --- generic/1: starting


def settings_come_first(c):
    c.send(PREFACE)
    c.set((INITIAL_WINDOW_SIZE, WINDOW))
    event = c.read()
    if event.kind != SETTINGS or event.has(ACK):
        raise Failed("SETTINGS without ACK as the first frame", [event])


case("generic/1", "the preface is answered with SETTINGS", handshake=False)(settings_come_first)


# --- generic/2: streams


@case("generic/2", "PRIORITY on an idle stream is accepted")
def _(c):
    c.priority()
    c.expect_alive()


@case("generic/2", "WINDOW_UPDATE on a half-closed stream is accepted")
def _(c):
    c.set((INITIAL_WINDOW_SIZE, 0))
    c.request()
    c.window_update(1, stream=1)
    c.expect_first(DATA, "DATA")


@case("generic/2", "PRIORITY on a half-closed stream is accepted")
def _(c):
    c.set((INITIAL_WINDOW_SIZE, 0))
    c.request()
    c.priority()
    c.window_update(1, stream=1)
    c.expect_first(DATA, "DATA")


@case("generic/2", "RST_STREAM on a half-closed stream is accepted")
def _(c):
    c.request()
    c.reset()
    c.expect_alive()


@case("generic/2", "PRIORITY on a closed stream is accepted")
def _(c):
    c.request()
    c.expect_end_of_stream()
    c.priority()
    c.expect_alive()


# --- generic/3: each type of frame

answered("generic/3.1", "a request with DATA", lambda c: (c.request("POST", end=False), c.data()))
answered("generic/3.1", "a request with several DATA frames",
         lambda c: (c.request("POST", end=False), c.data(end=False), c.data()))
answered("generic/3.1", "a request with padded DATA", lambda c: (c.request("POST", end=False), c.data(padding=5)))
answered("generic/3.2", "HEADERS", lambda c: c.request())
answered("generic/3.2", "padded HEADERS", lambda c: c.request(padding=8))
answered("generic/3.2", "HEADERS with a priority", lambda c: c.request(priority=depends()))
answered("generic/3.3", "a request after PRIORITY with the lowest weight",
         lambda c: (c.priority(weight=0), c.request()))
answered("generic/3.3", "a request after PRIORITY with the highest weight", lambda c: (c.priority(), c.request()))
answered("generic/3.3", "a request after PRIORITY that makes another depend on it",
         lambda c: (c.priority(stream=3, on=1, weight=0), c.request()))
answered("generic/3.3", "a request after PRIORITY with an exclusive dependency",
         lambda c: (c.priority(weight=0, exclusive=True), c.request()))
answered("generic/3.3", "a request after PRIORITY of a higher stream", lambda c: (c.priority(stream=3), c.request()))


@case("generic/3.4", "RST_STREAM is accepted")
def _(c):
    c.request(end=False)
    c.reset()
    c.expect_alive()


@case("generic/3.5", "SETTINGS with every known setting is acknowledged")
def _(c):
    c.set((HEADER_TABLE_SIZE, 4096), (ENABLE_PUSH, 1), (MAX_CONCURRENT_STREAMS, 100),
          (INITIAL_WINDOW_SIZE, 65535), (MAX_FRAME_SIZE, 16384), (MAX_HEADER_LIST_SIZE, 100))
    c.expect_settings_ack()


@case("generic/3.7", "PING is answered")
def _(c):
    c.expect_alive(b"payload!")


@case("generic/3.8", "GOAWAY is accepted")
def _(c):
    c.goaway(Code.NO_ERROR, b"debug")
    c.expect_alive_or_close(b"payload!")


@case("generic/3.9", "WINDOW_UPDATE of the connection is accepted")
def _(c):
    c.window_update(1)
    c.expect_alive()


answered("generic/3.9", "WINDOW_UPDATE of a stream", lambda c: (c.request(), c.window_update(1, stream=1)))


@case("generic/3.10", "a header block in two frames is answered")
def _(c):
    block = c.block(c.target.request())
    c.headers(block[:5], end_headers=False)
    c.continuation(block[5:])
    c.expect_answer()


@case("generic/3.10", "a header block in three frames is answered")
def _(c):
    block = c.block(c.target.request())
    c.headers(block[:5], end_headers=False)
    c.continuation(block[5:10], end_headers=False)
    c.continuation(block[10:])
    c.expect_answer()


# --- generic/4: messages

answered("generic/4", "GET", lambda c: c.request())
answered("generic/4", "HEAD", lambda c: c.request("HEAD"))
answered("generic/4", "POST", lambda c: (c.request("POST", end=False), c.data()))
answered("generic/4", "POST with trailers",
         lambda c: (c.request("POST", [("trailer", "x-test")], end=False), c.data(end=False),
                    c.headers([("x-test", "ok")])))


# --- generic/5: the forms that a header field can have


def around(before=b"", after=b""):
    """A request with something more in its header block."""
    return lambda c: c.headers(before + c.block(c.target.request()) + after)


HUFFMAN = {
    name: hpack_integer(len(coded), 7, 0x80) + coded for name, coded in [
        ("user-agent", b"\xb5\x05\xb1\x61\xcc\x5a\x93"),
        ("x-test", b"\xf2\xb2\x4a\x84\xff"),
        ("h2spec", b"\x9c\x48\xac\xa4"),
    ]
}

answered("generic/5", "a field from the static table", around(after=b"\xba"))
for form, first in [("to be indexed", b"\x40"), ("not to be indexed", b"\x00"), ("never to be indexed", b"\x10")]:
    for name in "user-agent", "x-test":
        for how, string in [("plain", hpack_string), ("Huffman-coded", HUFFMAN.get)]:
            field = first + string(name) + string("h2spec")
            answered("generic/5", f"a literal {form} ({name}, {how})", around(after=field))
answered("generic/5", "a new size of the dynamic table", around(before=b"\x3f\x61"))
answered("generic/5", "two new sizes of the dynamic table", around(before=b"\x3f\x61\x3f\xe1\x1f"))


# --- http2/3: starting

case("http2/3.5", "the server's first frame is SETTINGS", handshake=False)(settings_come_first)
breaks("http2/3.5", "another preface", lambda c: c.send(b"THIS IS NO PREFACE OF HTTP/2\r\n\r\n"), handshake=False)


# --- http2/4: frames

UNKNOWN_FRAME = 0x16
UNKNOWN_FLAGS = 0x16
RESERVED_BIT = 1 << 31


def unknown_frame_is_ignored(c):
    c.frame(UNKNOWN_FRAME, bytes(8), apart=True)
    c.expect_alive()


case("http2/4.1", "a frame of unknown type is ignored")(unknown_frame_is_ignored)


@case("http2/4.1", "unknown flags are ignored")
def _(c):
    c.frame(PING, bytes(8), UNKNOWN_FLAGS, apart=True)
    c.expect_first(PING, "PING")


@case("http2/4.1", "the reserved bit of a stream identifier is ignored")
def _(c):
    c.frame(PING, bytes(8), UNKNOWN_FLAGS, RESERVED_BIT, apart=True)
    c.expect_first(PING, "PING")


def largest_frame_of(c):
    return c.settings.get(MAX_FRAME_SIZE, 16384)


answered("http2/4.2", "DATA of the largest size",
         lambda c: (c.request("POST", end=False), c.data(b"x" * largest_frame_of(c))))
resets("http2/4.2", "DATA above the largest size",
       lambda c: (c.request("POST", end=False), c.data(b"x" * (largest_frame_of(c) + 1))), Code.FRAME_SIZE_ERROR)
breaks("http2/4.2", "HEADERS above the largest size", lambda c: c.request(extra=filler(5)), Code.FRAME_SIZE_ERROR)
breaks("http2/4.3", "a header block that breaks off", lambda c: c.headers(b"\x40"), Code.COMPRESSION_ERROR)


def priority_within_a_block(c):
    c.request(end=False, end_headers=False)
    c.priority()
    c.continuation(filler(1))


def other_stream_within_a_block(c):
    c.request(end=False, end_headers=False)
    c.request(stream=3)
    c.continuation(filler(1))


breaks("http2/4.3", "PRIORITY within a header block", priority_within_a_block)
breaks("http2/4.3", "HEADERS of another stream within a header block", other_stream_within_a_block)


# --- http2/5.1: states of a stream

breaks("http2/5.1", "idle: DATA", lambda c: c.data())
breaks("http2/5.1", "idle: RST_STREAM", lambda c: c.reset())
breaks("http2/5.1", "idle: WINDOW_UPDATE", lambda c: c.window_update(100, stream=1))
breaks("http2/5.1", "idle: CONTINUATION", lambda c: c.continuation(c.target.request()))
resets("http2/5.1", "half-closed: DATA", lambda c: (c.request(), c.data()), Code.STREAM_CLOSED)
resets("http2/5.1", "half-closed: HEADERS", lambda c: (c.request(), c.request()), Code.STREAM_CLOSED)


@case("http2/5.1", "half-closed: CONTINUATION is an error")
def _(c):
    block = c.block(c.target.request())
    c.headers(block)
    c.continuation(block)
    c.expect_stream_error(Code.STREAM_CLOSED, Code.PROTOCOL_ERROR)


resets("http2/5.1", "closed by RST_STREAM: DATA",
       lambda c: (c.request(end=False), c.reset(), c.data()), Code.STREAM_CLOSED)
resets("http2/5.1", "closed by RST_STREAM: HEADERS",
       lambda c: (c.request(end=False), c.reset(), c.request()), Code.STREAM_CLOSED)
resets("http2/5.1", "closed by RST_STREAM: CONTINUATION",
       lambda c: (c.request(end=False), c.reset(), c.continuation(filler(1))), Code.STREAM_CLOSED, Code.PROTOCOL_ERROR)


@case("http2/5.1", "closed: DATA is STREAM_CLOSED")
def _(c):
    c.request()
    c.expect_end_of_stream()
    c.data()
    c.expect_stream_error(Code.STREAM_CLOSED)


@case("http2/5.1", "closed: HEADERS is STREAM_CLOSED of the connection")
def _(c):
    block = c.block(c.target.request())
    c.headers(block)
    c.expect_end_of_stream()
    c.headers(block)
    c.expect_connection_error(Code.STREAM_CLOSED)


@case("http2/5.1", "closed: CONTINUATION is an error of the connection")
def _(c):
    c.request()
    c.expect_end_of_stream()
    c.continuation(filler(1))
    c.expect_connection_error(Code.STREAM_CLOSED, Code.PROTOCOL_ERROR)


breaks("http2/5.1.1", "a stream of even number", lambda c: c.request(stream=2))
breaks("http2/5.1.1", "a new stream below the last one", lambda c: (c.request(stream=5), c.request(stream=3)))


@case("http2/5.1.2", "one stream too many is refused")
def _(c):
    limit = c.settings.get(MAX_CONCURRENT_STREAMS)
    if limit is None or limit > 100_000:
        raise Skipped("the server sets no limit that can be reached")
    c.set((INITIAL_WINDOW_SIZE, 0))
    block = c.block(c.target.request())
    for i in range(limit + 1):
        c.headers(block, stream=2 * i + 1)
    c.expect_stream_error(Code.PROTOCOL_ERROR, Code.REFUSED_STREAM)


# --- http2/5.3 to 5.5: dependencies, errors, extensions

resets("http2/5.3.1", "HEADERS that depends on its own stream", lambda c: c.request(priority=depends(on=1)))
resets("http2/5.3.1", "PRIORITY that depends on its own stream", lambda c: c.priority(on=1))


@case("http2/5.4.1", "a connection error closes the connection")
def _(c):
    c.frame(PING, bytes(8), stream=3, apart=True)
    c.expect_close()


@case("http2/5.4.1", "a connection error is told with GOAWAY")
def _(c):
    c.frame(PING, bytes(8), stream=3, apart=True)
    c.expect_first(GOAWAY, "GOAWAY")


case("http2/5.5", "an extension's frame is ignored")(unknown_frame_is_ignored)
breaks("http2/5.5", "an extension's frame within a header block",
       lambda c: (c.request(end_headers=False), c.frame(UNKNOWN_FRAME, bytes(8), apart=True)))


# --- http2/6.1 to 6.4: DATA, HEADERS, PRIORITY, RST_STREAM

breaks("http2/6.1", "DATA on stream 0", lambda c: c.data(stream=0))
resets("http2/6.1", "DATA on a stream that is not open",
       lambda c: (c.request("POST"), c.data()), Code.STREAM_CLOSED)
breaks("http2/6.1", "DATA with more padding than payload",
       lambda c: (c.request("POST", [("content-length", "4")], end=False),
                  c.frame(DATA, b"\x06Test", END_STREAM | PADDED, 1, apart=True)))
breaks("http2/6.2", "HEADERS without END_HEADERS, then PRIORITY,", priority_within_a_block)
breaks("http2/6.2", "HEADERS without END_HEADERS, then another stream's,", other_stream_within_a_block)
breaks("http2/6.2", "HEADERS on stream 0", lambda c: c.request(stream=0))


@case("http2/6.2", "HEADERS with more padding than payload is PROTOCOL_ERROR")
def _(c):
    block = c.block(c.target.request())
    payload = bytes([len(block) + 2]) + block
    c.frame(HEADERS, payload, END_STREAM | END_HEADERS | PADDED, 1, apart=True)
    c.expect_stream_error(Code.PROTOCOL_ERROR)


breaks("http2/6.3", "PRIORITY on stream 0", lambda c: c.priority(stream=0))
resets("http2/6.3", "PRIORITY of 4 bytes",
       lambda c: (c.request(), c.frame(PRIORITY, b"\x80\x00\x00\x01", stream=1, apart=True)), Code.FRAME_SIZE_ERROR)
breaks("http2/6.4", "RST_STREAM on stream 0", lambda c: c.reset(stream=0))
breaks("http2/6.4", "RST_STREAM on an idle stream", lambda c: c.reset())
resets("http2/6.4", "RST_STREAM of 3 bytes",
       lambda c: (c.request(), c.frame(RST_STREAM, bytes(3), stream=1, apart=True)), Code.FRAME_SIZE_ERROR)


# --- http2/6.5: SETTINGS

breaks("http2/6.5", "an acknowledgement with a payload",
       lambda c: c.frame(SETTINGS, bytes(1), ACK, apart=True), Code.FRAME_SIZE_ERROR)
breaks("http2/6.5", "SETTINGS on a stream",
       lambda c: c.frame(SETTINGS, struct.pack(">HL", MAX_CONCURRENT_STREAMS, 100), stream=1, apart=True))
resets("http2/6.5", "SETTINGS of 3 bytes",
       lambda c: c.frame(SETTINGS, b"\x00\x03\x00", apart=True), Code.PROTOCOL_ERROR, Code.FRAME_SIZE_ERROR)
breaks("http2/6.5.2", "ENABLE_PUSH of 2", lambda c: c.set((ENABLE_PUSH, 2)))
breaks("http2/6.5.2", "INITIAL_WINDOW_SIZE above 2³¹−1",
       lambda c: c.set((INITIAL_WINDOW_SIZE, 2**31)), Code.FLOW_CONTROL_ERROR)
breaks("http2/6.5.2", "MAX_FRAME_SIZE below 2¹⁴", lambda c: c.set((MAX_FRAME_SIZE, 2**14 - 1)))
breaks("http2/6.5.2", "MAX_FRAME_SIZE above 2²⁴−1", lambda c: c.set((MAX_FRAME_SIZE, 2**24)))


@case("http2/6.5.2", "an unknown setting is ignored")
def _(c):
    c.set((0xFF, 1))
    c.expect_alive()


@case("http2/6.5.3", "a setting given twice takes the last value", body=1)
def _(c):
    c.set((INITIAL_WINDOW_SIZE, 100), (INITIAL_WINDOW_SIZE, 1))
    c.expect_settings_ack()
    c.request()
    c.expect_data(1)


@case("http2/6.5.3", "SETTINGS is acknowledged")
def _(c):
    c.set((ENABLE_PUSH, 0))
    c.expect_settings_ack()


# --- http2/6.7 and 6.8: PING, GOAWAY


@case("http2/6.7", "PING is answered with the same payload")
def _(c):
    c.expect_alive(b"payload!")


@case("http2/6.7", "an answer to PING is not answered")
def _(c):
    c.ping(b"unasked!", ACK)
    c.expect_alive(b"payload!")


breaks("http2/6.7", "PING on a stream", lambda c: c.frame(PING, bytes(8), stream=1, apart=True))
breaks("http2/6.7", "PING of 6 bytes", lambda c: c.frame(PING, bytes(6), apart=True), Code.FRAME_SIZE_ERROR)
breaks("http2/6.8", "GOAWAY on a stream", lambda c: c.frame(GOAWAY, bytes(8), stream=1, apart=True))


# --- http2/6.9: WINDOW_UPDATE and flow control

breaks("http2/6.9", "WINDOW_UPDATE of 0", lambda c: c.window_update(0))
resets("http2/6.9", "WINDOW_UPDATE of 0 on a stream",
       lambda c: (c.request(end=False), c.window_update(0, stream=1)))
breaks("http2/6.9", "WINDOW_UPDATE of 3 bytes",
       lambda c: c.frame(WINDOW_UPDATE, b"\x00\x00\x01", apart=True), Code.FRAME_SIZE_ERROR)


@case("http2/6.9.1", "no more DATA is sent than a window of 1 allows", body=1)
def _(c):
    c.set((INITIAL_WINDOW_SIZE, 1))
    c.expect_settings_ack()
    c.request()
    c.expect_data(1)


@case("http2/6.9.1", "a connection's window above 2³¹−1 is FLOW_CONTROL_ERROR")
def _(c):
    c.window_update(2**31 - 1)
    c.window_update(2**31 - 1)
    c.expect_first(GOAWAY, "GOAWAY(FLOW_CONTROL_ERROR)", lambda event: event.code == Code.FLOW_CONTROL_ERROR)


@case("http2/6.9.1", "a stream's window above 2³¹−1 is FLOW_CONTROL_ERROR")
def _(c):
    c.request(end=False)
    c.window_update(2**31 - 1, stream=1)
    c.window_update(2**31 - 1, stream=1)
    c.expect_first(RST_STREAM, "RST_STREAM(FLOW_CONTROL_ERROR)", lambda event: event.code == Code.FLOW_CONTROL_ERROR)


@case("http2/6.9.2", "a new initial window applies to streams that are open", body=1)
def _(c):
    c.set((INITIAL_WINDOW_SIZE, 0))
    c.expect_settings_ack()
    c.request()
    c.set((INITIAL_WINDOW_SIZE, 1))
    c.expect_data(1)


@case("http2/6.9.2", "a window that became negative is made up for first", body=5)
def _(c):
    c.set((INITIAL_WINDOW_SIZE, 3))
    c.expect_settings_ack()
    c.request()
    c.expect_first(DATA, "DATA")
    c.set((INITIAL_WINDOW_SIZE, 2))
    c.expect_settings_ack()
    c.window_update(2, stream=1)
    c.expect_data(1)


breaks("http2/6.9.2", "an initial window above 2³¹−1",
       lambda c: c.frame(SETTINGS, struct.pack(">HL", INITIAL_WINDOW_SIZE, 2**31), apart=True), Code.FLOW_CONTROL_ERROR)


# --- http2/6.10: CONTINUATION

answered("http2/6.10", "several CONTINUATION frames",
         lambda c: (c.request(end_headers=False), c.continuation(filler(1), end_headers=False),
                    c.continuation(filler(1))))
breaks("http2/6.10", "DATA after CONTINUATION without END_HEADERS",
       lambda c: (c.request("POST", end=False, end_headers=False), c.continuation(filler(1), end_headers=False),
                  c.data()))
breaks("http2/6.10", "CONTINUATION on stream 0",
       lambda c: (c.request(end_headers=False), c.continuation(filler(1), stream=0)))
breaks("http2/6.10", "CONTINUATION after HEADERS with END_HEADERS",
       lambda c: (c.request(), c.continuation(filler(1))))
breaks("http2/6.10", "CONTINUATION after CONTINUATION with END_HEADERS",
       lambda c: (c.request(end_headers=False), c.continuation(filler(1)), c.continuation(filler(1))))
breaks("http2/6.10", "CONTINUATION after DATA",
       lambda c: (c.request("POST", end=False, end_headers=False), c.data(),
                  c.continuation(filler(1), end_headers=False), c.continuation(filler(1), stream=0)))


# --- http2/7: codes of errors

UNKNOWN_CODE = 0xFF


@case("http2/7", "GOAWAY with an unknown code is accepted")
def _(c):
    c.goaway(UNKNOWN_CODE)
    c.expect_alive_or_close(b"payload!")


@case("http2/7", "RST_STREAM with an unknown code is accepted")
def _(c):
    c.request("POST", end=False)
    c.reset(code=UNKNOWN_CODE)
    c.expect_alive()


# --- http2/8: messages

resets("http2/8.1", "trailers without END_STREAM",
       lambda c: (c.request("POST", end=False), c.data(end=False), c.headers([("x-test", "ok")], end=False)))


def malformed(section, title, change):
    """A request whose fields are no longer right after the change."""
    resets(section, title, lambda c: c.headers(change(*c.target.request())))


malformed("http2/8.1.2", "a field name with capitals", lambda *usual: [*usual, ("X-TEST", "ok")])
malformed("http2/8.1.2.1", "an unknown pseudo-header", lambda *usual: [*usual, (":test", "ok")])
malformed("http2/8.1.2.1", "a pseudo-header of answers", lambda *usual: [*usual, (":status", "200")])
resets("http2/8.1.2.1", "a pseudo-header in trailers",
       lambda c: (c.request("POST", end=False), c.data(end=False), c.headers([(":method", "POST")], end=False)))
malformed("http2/8.1.2.1", "a pseudo-header after other fields", lambda *usual: [("x-test", "ok"), *usual])
malformed("http2/8.1.2.2", "a field that concerns the connection",
          lambda *usual: [*usual, ("connection", "keep-alive")])
malformed("http2/8.1.2.2", "TE other than trailers",
          lambda *usual: [*usual, ("trailers", "test"), ("te", "trailers, deflate")])
malformed("http2/8.1.2.3", "an empty :path", lambda method, scheme, path, host: [method, scheme, (":path", ""), host])
malformed("http2/8.1.2.3", "a request without :method", lambda method, scheme, path, host: [path, host])
malformed("http2/8.1.2.3", "a request without :scheme", lambda method, scheme, path, host: [method, path, host])
malformed("http2/8.1.2.3", "a request without :path", lambda method, scheme, path, host: [method, scheme, host])
malformed("http2/8.1.2.3", "a second :method", lambda method, *rest: [method, *rest, method])
malformed("http2/8.1.2.3", "a second :scheme", lambda method, scheme, *rest: [method, scheme, *rest, scheme])
malformed("http2/8.1.2.3", "a second :path", lambda method, scheme, path, host: [method, scheme, path, host, path])
resets("http2/8.1.2.6", "a body longer than content-length",
       lambda c: (c.request("POST", [("content-length", "1")], end=False), c.data()))
resets("http2/8.1.2.6", "a body in parts, longer than content-length,",
       lambda c: (c.request("POST", [("content-length", "1")], end=False), c.data(end=False), c.data()))
breaks("http2/8.2", "PUSH_PROMISE from a client",
       lambda c: c.frame(PUSH_PROMISE, struct.pack(">L", 3) + c.block(c.target.request()), END_HEADERS, 1))


# --- hpack: what cannot be decoded

X_TEST = b"\x00" + HUFFMAN["x-test"]

breaks("hpack/2.3.3", "an index that no table has", around(after=b"\xc6"), Code.COMPRESSION_ERROR)
breaks("hpack/2.3.3", "the name of an index that no table has", around(after=b"\x7f\x07\x00"), Code.COMPRESSION_ERROR)
breaks("hpack/4.2", "a table size after the fields", around(after=b"\x21"), Code.COMPRESSION_ERROR)
breaks("hpack/5.2", "Huffman padding of more than 7 bits",
       around(after=X_TEST + b"\x84\x49\x50\x9f\xff"), Code.COMPRESSION_ERROR)
breaks("hpack/5.2", "Huffman padding of zeros", around(after=X_TEST + b"\x83\x49\x50\x90"), Code.COMPRESSION_ERROR)
breaks("hpack/5.2", "a Huffman code with EOS in it",
       around(after=X_TEST + b"\x87\x49\x51\xff\xff\xff\xfa\x7f"), Code.COMPRESSION_ERROR)
breaks("hpack/6.1", "index 0", around(after=b"\x80"), Code.COMPRESSION_ERROR)


@case("hpack/6.3", "a table size above HEADER_TABLE_SIZE is COMPRESSION_ERROR")
def _(c):
    size = c.settings.get(HEADER_TABLE_SIZE, 4096) + 1
    c.headers(hpack_integer(size, 5, 0x20) + c.block(c.target.request()))
    c.expect_connection_error(Code.COMPRESSION_ERROR)


# ------------------------------------------------------------------------------------------- running


class Outcome(NamedTuple):
    case: Case
    word: str
    why: str
    log: list

    def __str__(self):
        return f"{self.word} {self.case.id} {self.case.title}" + (f": {self.why}" if self.why else "")


def run(case, target):
    log = []
    try:
        if case.body and (length := target.body_length()) < case.body:
            raise Skipped(f"the answer has {length} bytes, and the case needs {case.body}")
        with Connection(target) as c:
            log = c.log
            if case.handshake:
                c.handshake()
            case.check(c)
        word, why = "pass", ""
    except Skipped as reason:
        word, why = "skip", str(reason)
    except Failed as failure:
        word, why = "FAIL", str(failure)
    except OSError as error:
        word, why = "FAIL", f"no connection: {error}"
    return Outcome(case, word, why, log)


def main():
    parser = argparse.ArgumentParser(description="Checks whether a server keeps to HTTP/2.")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--tls", action="store_true", help="TLS with ALPN; the certificate is not checked")
    parser.add_argument("--path", default="/", help="what is asked for")
    parser.add_argument("--timeout", type=float, default=2, help="seconds to wait for an answer")
    parser.add_argument("--only", action="append", metavar="SECTION", help="such as http2/6.5 or http2/6.5/1")
    parser.add_argument("--jobs", type=int, default=8, help="cases that run at the same time")
    parser.add_argument("--one-by-one", action="store_true", help="send a frame as soon as it is made, as h2spec does: "
                        "a quick server may then have answered a request before it sees what is wrong with it")
    parser.add_argument("-v", "--verbose", action="store_true", help="every case, and the frames of those that failed")
    options = parser.parse_args()

    target = Target(options.host, options.port, options.tls, options.path, options.timeout, options.one_by_one)
    cases = [case for case in CASES if not options.only or any(map(case.within, options.only))]
    if not cases:
        parser.error("no such section")
    counts = dict.fromkeys(("pass", "skip", "FAIL"), 0)
    with ThreadPoolExecutor(options.jobs) as pool:
        for outcome in pool.map(lambda case: run(case, target), cases):
            counts[outcome.word] += 1
            if outcome.word != "pass" or options.verbose:
                print(outcome, flush=True)
            if outcome.word == "FAIL" and options.verbose:
                print("".join(f"       {line}\n" for line in outcome.log), end="", flush=True)
    rest = f", {counts['skip']} skipped" if counts["skip"] else ""
    print(f"{len(cases)} cases, {counts['pass']} passed{rest}")
    return 1 if counts["FAIL"] else 0


if __name__ == "__main__":
    sys.exit(main())
