"""Floods and broken frames in HTTP/2: each function floods one connection and judges how that ended.

While and after it, others must be answered at once, the gateway's memory must not follow the flood, and
the connection must be ended where what it does costs more than it takes to send.
"""

import struct
import threading
import time

from frames import (ACK, CONTINUATION, DATA, END_HEADERS, END_STREAM, GOAWAY, HEADERS, PADDED, PING, PREFACE, PRIORITY, PUSH_PROMISE,
                    SETTINGS, Caller2, block, frame, headers, integer, literal, probe, request, reset,
                    settings, string, window)
from kit import expect

FLOODS = []
MOST_MEMORY = 48 << 20
GET, POST = block(request()), block(request(b"POST"))


def flood(name):
    def register(function):
        FLOODS.append((name, function))
        return function
    return register


class Bystander:
    """Somebody else, who asks every now and then while a flood goes on. The longest wait is kept."""

    def __init__(self, lab):
        self.lab, self.worst, self.unanswered, self.over = lab, 0.0, 0, threading.Event()
        self.thread = threading.Thread(target=self.run, daemon=True)

    def run(self):
        while not self.over.wait(0.05):
            try:
                stream, took = probe(self.lab.port)
            except OSError:
                stream, took = None, 0.0
            self.worst = max(self.worst, took)
            self.unanswered += stream is None or stream.status != 200

    def __enter__(self):
        self.before = self.lab.memory()
        self.thread.start()
        return self

    def __exit__(self, kind, *_):
        time.sleep(0.06)
        self.over.set()
        self.thread.join()
        if kind:
            return
        expect(not self.unanswered, f"{self.unanswered} others got no answer meanwhile")
        expect(self.worst < 1.5, f"another waited for {self.worst:.1f} s")
        grown = self.lab.memory() - self.before
        expect(grown < MOST_MEMORY, f"the gateway has grown by {grown >> 20} MiB")
        stream, _ = probe(self.lab.port)
        expect(stream.status == 200, "no answer to another afterwards")


def streams(count, first=1):
    return range(first, first + 2 * count, 2)


def run(lab, data, ends=True, pairs=(), reading=True, first=b"", seconds=6.0):
    """Floods a connection. `ends`: True, it must be ended; False, it must go on; None, either will do."""
    with Bystander(lab), Caller2(lab.port, PREFACE, *pairs) as caller:
        expect(caller.answers(b"ready ??"), "no handshake")
        if first:
            caller.push(first)
        whole = caller.push(data, reading, seconds)
        if reading and not caller.ended:
            caller.wait(lambda: caller.ended, 0.3 if ends is False else 1.0)
        goes_on = not caller.ended and reading and caller.answers(b"and now?")
        how = caller.ending()
        if ends is True:
            expect(caller.ended, f"the connection goes on after {caller.sent} bytes (all sent: {whole})")
        elif ends is False:
            expect(goes_on, f"the connection does not go on: {how}")
        elif reading:
            expect(goes_on or caller.ended, "the connection neither ends nor goes on")
        return how if caller.ended else "goes on"


def ended_with(lab, data, *codes, **how):
    """The connection must end with one of these, with the general PROTOCOL_ERROR that RFC 9113 (section 5.4)
    allows instead, or just close; without any, by an error of some kind."""
    seen = run(lab, data, True, **how)
    wanted = {f"GOAWAY {code}" for code in (*codes, "PROTOCOL_ERROR")} | {"closed"}
    if codes:
        expect(seen in wanted, f"it ended with {seen}, not {' or '.join(sorted(wanted))}")
    else:
        expect(seen != "GOAWAY NO_ERROR", "it ended as if nothing were wrong")
    return None


# --- resets ----------------------------------------------------------------------------------------
#
# An error of a stream may be taken for one of the connection (RFC 9113, section 5.4), so the first is
# enough to end it; its code must be the error's own.

@flood("reset: rapid, 5,000 requests in one go")
def _(lab, recorder):
    data = b"".join(frame(HEADERS, GET, END_HEADERS | END_STREAM, n) + reset(n) for n in streams(5000))
    ended_with(lab, data, "ENHANCE_YOUR_CALM")


@flood("reset: rapid, 5,000 requests with open bodies")
def _(lab, recorder):
    data = b"".join(frame(HEADERS, POST, END_HEADERS, n) + reset(n) for n in streams(5000))
    ended_with(lab, data, "ENHANCE_YOUR_CALM")


@flood("reset: rapid, each after it has begun")
def _(lab, recorder):
    """Requests that were begun are reset, a hundred at a time, so that each costs the upstream a connection."""
    recorder.mark()
    with Bystander(lab), Caller2(lab.port) as caller:
        expect(caller.answers(b"ready ??"), "no handshake")
        sent = 0
        for batch in range(60):
            numbers = streams(100, 1 + 200 * batch)
            caller.push(b"".join(frame(HEADERS, POST, END_HEADERS, n) for n in numbers))
            if not caller.answers(b"%08d" % batch):  # they have been read
                break
            caller.push(b"".join(reset(n) for n in numbers))
            sent += 100
            if caller.ended:
                break
        expect(caller.ended, f"{sent} requests were begun and reset over one connection, which goes on; "
                             f"upstream connections used: {len(recorder.seen())}")


@flood("reset: rapid, by errors of the caller's making (an increment of zero)")
def _(lab, recorder):
    data = b"".join(frame(HEADERS, POST, END_HEADERS, n) + window(0, n) for n in streams(5000))
    ended_with(lab, data, "ENHANCE_YOUR_CALM", "PROTOCOL_ERROR")


@flood("reset: by errors, data after the end")
def _(lab, recorder):
    data = b"".join(frame(HEADERS, GET, END_HEADERS | END_STREAM, n) + frame(DATA, b"x", 0, n) for n in streams(5000))
    ended_with(lab, data, "ENHANCE_YOUR_CALM", "STREAM_CLOSED")


@flood("reset: by errors, headers after the end")
def _(lab, recorder):
    data = b"".join(frame(HEADERS, GET, END_HEADERS | END_STREAM, n) * 2 for n in streams(5000))
    ended_with(lab, data, "ENHANCE_YOUR_CALM", "STREAM_CLOSED", "PROTOCOL_ERROR")


@flood("reset: by errors, a PRIORITY of the wrong length")
def _(lab, recorder):
    data = b"".join(frame(HEADERS, POST, END_HEADERS, n) + frame(PRIORITY, b"xxxx", 0, n) for n in streams(5000))
    ended_with(lab, data, "ENHANCE_YOUR_CALM", "FRAME_SIZE_ERROR")


@flood("reset: by errors, a stream that depends on itself")
def _(lab, recorder):
    data = b"".join(frame(HEADERS, POST, END_HEADERS, n) + frame(PRIORITY, struct.pack(">LB", n, 0), 0, n) for n in streams(5000))
    return run(lab, data, None)


@flood("reset: by errors, a window beyond 2^31")
def _(lab, recorder):
    data = b"".join(frame(HEADERS, POST, END_HEADERS, n) + window(0x7FFFFFFF, n) for n in streams(5000))
    ended_with(lab, data, "ENHANCE_YOUR_CALM", "FLOW_CONTROL_ERROR")


@flood("reset: by errors, malformed requests")
def _(lab, recorder):
    data = b"".join(headers(request() + [(b"X-Capital", b"1")], n) for n in streams(5000))
    ended_with(lab, data, "ENHANCE_YOUR_CALM", "PROTOCOL_ERROR")


@flood("reset: by errors, bodies that are no length")
def _(lab, recorder):
    one = block(request(b"POST") + [(b"content-length", b"1")])
    data = b"".join(frame(HEADERS, one, END_HEADERS, n) + frame(DATA, b"xyz", END_STREAM, n) for n in streams(5000))
    ended_with(lab, data, "ENHANCE_YOUR_CALM", "PROTOCOL_ERROR")


@flood("reset: by errors, trailers that end nothing")
def _(lab, recorder):
    data = b"".join(frame(HEADERS, POST, END_HEADERS, n) + frame(HEADERS, block([(b"x-a", b"b")]), END_HEADERS, n) for n in streams(5000))
    ended_with(lab, data, "ENHANCE_YOUR_CALM", "PROTOCOL_ERROR")


@flood("reset: by refusals, 3,000 requests that are answered with 400")
def _(lab, recorder):
    """No error of the protocol: answers, as many as were asked for, in turn."""
    bad = block(request(path=b"/%00"))
    data = b"".join(frame(HEADERS, bad, END_HEADERS | END_STREAM, n) for n in streams(3000))
    return run(lab, data, None)


@flood("reset: of streams that are over, 20,000 times")
def _(lab, recorder):
    return run(lab, reset(1) * 20_000, None, first=headers(request()))


# --- heads -----------------------------------------------------------------------------------------

@flood("continuation: small ones without an end")
def _(lab, recorder):
    data = frame(HEADERS, GET, END_STREAM, 1) + frame(CONTINUATION, literal(b"x-a", b"b"), 0, 1) * 50_000
    ended_with(lab, data)


@flood("continuation: empty ones without an end")
def _(lab, recorder):
    ended_with(lab, frame(HEADERS, GET, END_STREAM, 1) + frame(CONTINUATION, b"", 0, 1) * 50_000)


@flood("continuation: large ones without an end")
def _(lab, recorder):
    ended_with(lab, frame(HEADERS, GET, END_STREAM, 1) + frame(CONTINUATION, literal(b"x-a", b"b" * 16_000), 0, 1) * 2000)


@flood("continuation: bytes that never become a field")
def _(lab, recorder):
    endless = b"\0" + integer(1 << 24, 7) + b"a"
    ended_with(lab, frame(HEADERS, GET + endless, END_STREAM, 1) + frame(CONTINUATION, b"a" * 100, 0, 1) * 20_000)


@flood("continuation: a head that is begun and left")
def _(lab, recorder):
    """The head's time-out holds, whatever is begun."""
    with Bystander(lab), Caller2(lab.port) as caller:
        caller.push(frame(HEADERS, GET, END_STREAM, 1))
        expect(caller.wait(lambda: caller.closed is not None, 1.8), "the connection stays open")


@flood("hpack: a field of the table, 16,000 times over")
def _(lab, recorder):
    big = b"\x40" + string(b"x-bomb") + string(b"b" * 3900)
    with Bystander(lab), Caller2(lab.port) as caller:
        expect(caller.answers(b"ready ??"), "no handshake")
        caller.push(frame(HEADERS, GET + big, END_HEADERS | END_STREAM, 1))
        caller.wait(lambda: caller.stream(1).ended or caller.ended)
        expect(caller.stream(1).status == 200, "the first request")
        recorder.mark()
        caller.push(headers(GET + b"\xbe" * 16_000, 3))
        stream = caller.stream(3)
        caller.wait(lambda: stream.ended or caller.ended)
        expect(caller.ended or stream.reset is not None or stream.status == 431, f"status {stream.status}")
        expect(not any(b"x-bomb" in raw for raw in recorder.seen()), "it reached the upstream")


@flood("hpack: bombs by the hundred")
def _(lab, recorder):
    big = b"\x40" + string(b"x-bomb") + string(b"b" * 3900)
    data = frame(HEADERS, GET + big, END_HEADERS | END_STREAM, 1) + b"".join(headers(GET + b"\xbe" * 16_000, n) for n in streams(300, 3))
    return run(lab, data, None)


@flood("hpack: the table's size, again and again")
def _(lab, recorder):
    return run(lab, headers(b"\x20\x3f\xe1\x1f" * 4000 + GET), None)


@flood("hpack: a table larger than was allowed")
def _(lab, recorder):
    ended_with(lab, headers(b"\x3f\xe1\xff\x03" + GET), "COMPRESSION_ERROR")


@flood("hpack: an index beyond the table")
def _(lab, recorder):
    ended_with(lab, headers(GET + b"\xff\xff\x7f"), "COMPRESSION_ERROR")


@flood("hpack: an integer without an end")
def _(lab, recorder):
    ended_with(lab, headers(GET + b"\xff" + b"\x80" * 1000 + b"\1"), "COMPRESSION_ERROR")


@flood("hpack: Huffman's code with the end in it")
def _(lab, recorder):
    ended_with(lab, headers(GET + b"\0" + string(b"x-a") + b"\x84\xff\xff\xff\xff"), "COMPRESSION_ERROR")


# --- frames that cost nothing to send --------------------------------------------------------------

@flood("settings: 30,000 of them")
def _(lab, recorder):
    return run(lab, settings((3, 100)) * 30_000, None)


@flood("settings: 5,000 entries in each")
def _(lab, recorder):
    return run(lab, settings(*[(3, 100)] * 2700) * 300, None)


@flood("settings: windows that change under open requests")
def _(lab, recorder):
    opened = b"".join(frame(HEADERS, POST, END_HEADERS, n) for n in streams(100))
    return run(lab, b"".join(settings((4, value)) for value in (0, 65535)) * 10_000, None, first=opened)


@flood("settings: acknowledgements of nothing")
def _(lab, recorder):
    return run(lab, frame(SETTINGS, flags=ACK) * 20_000, None)


@flood("ping: 50,000 of them")
def _(lab, recorder):
    return run(lab, frame(PING, b"12345678") * 50_000, None)


@flood("ping: without reading")
def _(lab, recorder):
    """What is not taken must not be kept."""
    return run(lab, frame(PING, b"12345678") * 2_000_000, None, reading=False, seconds=3)


@flood("ping: acknowledgements of nothing")
def _(lab, recorder):
    return run(lab, frame(PING, b"12345678", ACK) * 30_000, None)


@flood("data: 50,000 empty frames")
def _(lab, recorder):
    ended_with(lab, frame(DATA, b"", 0, 1) * 50_000, "ENHANCE_YOUR_CALM", first=headers(POST, 1, False))


@flood("data: 50,000 frames of nothing but padding")
def _(lab, recorder):
    return run(lab, frame(DATA, b"\x01\0", PADDED, 1) * 50_000, None, first=headers(POST, 1, False))


@flood("data: 50,000 frames of a byte")
def _(lab, recorder):
    return run(lab, frame(DATA, b"x", 0, 1) * 50_000, None, first=headers(POST, 1, False))


@flood("priority: 50,000 of them, for streams that are not there")
def _(lab, recorder):
    return run(lab, b"".join(frame(PRIORITY, struct.pack(">LB", 0, 15), 0, n) for n in streams(50_000)), None)


@flood("window: 50,000 openings by a byte")
def _(lab, recorder):
    return run(lab, window(1) * 50_000, None)


@flood("unknown: 50,000 frames of a kind that nobody knows")
def _(lab, recorder):
    return run(lab, frame(0xEE, b"x", 0xFF, 7) * 50_000, None)


@flood("goaway: 10,000 of them")
def _(lab, recorder):
    return run(lab, frame(GOAWAY, struct.pack(">LL", 0, 0)) * 10_000, None)


@flood("streams: 1,000 at once, which is more than allowed")
def _(lab, recorder):
    """Those above the limit are refused; none of them reaches the upstream."""
    with Bystander(lab), Caller2(lab.port) as caller:
        expect(caller.answers(b"ready ??"), "no handshake")
        most = caller.settings.get(3, 1 << 31)
        expect(most <= 1000, f"{most} streams at once are allowed")
        recorder.mark()
        caller.push(b"".join(frame(HEADERS, block(request(b"POST", b"/open")), END_HEADERS, n) for n in streams(1000)))
        caller.answers(b"and now?")
        refused = sum(stream.reset in (7, 1) for stream in caller.streams.values())
        expect(caller.ended or refused >= 1000 - most, f"{refused} of 1000 were refused, {most} allowed")
        begun = sum(raw.count(b"POST /open ") for raw in recorder.seen())
        expect(begun <= most, f"{begun} reached the upstream, {most} allowed")


@flood("streams: nobody takes the answers")
def _(lab, recorder):
    """Windows of zero: the answers wait, and the connection does not wait for ever."""
    data = b"".join(headers(GET, n) for n in streams(120))
    return run(lab, data, None, pairs=[(4, 0)])


@flood("streams: numbers that go down")
def _(lab, recorder):
    ended_with(lab, headers(GET, 5) + headers(GET, 3), "PROTOCOL_ERROR", "STREAM_CLOSED")


@flood("streams: even numbers")
def _(lab, recorder):
    ended_with(lab, headers(GET, 2), "PROTOCOL_ERROR")


@flood("streams: the caller pushes")
def _(lab, recorder):
    ended_with(lab, frame(PUSH_PROMISE, struct.pack(">L", 2) + GET, END_HEADERS, 1), "PROTOCOL_ERROR")


@flood("streams: data for one that is not there")
def _(lab, recorder):
    ended_with(lab, frame(DATA, b"x", 0, 9), "PROTOCOL_ERROR")


@flood("streams: data for one that is over")
def _(lab, recorder):
    """A smuggler's body after the end of the request."""
    recorder.mark()
    with Caller2(lab.port) as caller:
        caller.push(headers(GET, 1))
        caller.wait(lambda: caller.stream(1).ended)
        caller.push(frame(DATA, b"GET /smuggled HTTP/1.1\r\nHost: a.test\r\n\r\n", END_STREAM, 1))
        caller.answers(b"and now?")
        expect(caller.ended or caller.stream(1).reset is not None, "it is taken without a word")
        expect(not any(b"smuggled" in raw for raw in recorder.seen()), "it reached the upstream")


# --- windows ---------------------------------------------------------------------------------------

@flood("window: more data than a request may send")
def _(lab, recorder):
    """The upstream may take some of it, so it is sent at once, and far too much."""
    data = headers(block(request(b"POST") + [(b"content-length", b"9000000")]), 1, False) + frame(DATA, b"x" * 16384, 0, 1) * 500
    return run(lab, data, None)


@flood("window: more than 2^31")
def _(lab, recorder):
    ended_with(lab, window(0x7FFFFFFF) * 2, "FLOW_CONTROL_ERROR")


@flood("window: an increment of zero")
def _(lab, recorder):
    ended_with(lab, window(0), "PROTOCOL_ERROR")


@flood("window: an initial one beyond 2^31")
def _(lab, recorder):
    ended_with(lab, settings((4, 0x80000000)), "FLOW_CONTROL_ERROR")


# --- frames that are none --------------------------------------------------------------------------

@flood("frame: larger than allowed")
def _(lab, recorder):
    ended_with(lab, frame(HEADERS, b"x" * 20_000, END_HEADERS, 1), "FRAME_SIZE_ERROR")


@flood("frame: 16 MiB")
def _(lab, recorder):
    ended_with(lab, frame(DATA, b"x" * ((1 << 24) - 1), 0, 1), "FRAME_SIZE_ERROR")


@flood("frame: padding that is longer than the frame")
def _(lab, recorder):
    ended_with(lab, frame(HEADERS, b"\xff" + GET, END_HEADERS | END_STREAM | PADDED, 1), "PROTOCOL_ERROR")


@flood("frame: a head that is interrupted by another's")
def _(lab, recorder):
    ended_with(lab, frame(HEADERS, GET, END_STREAM, 1) + headers(GET, 3), "PROTOCOL_ERROR")


@flood("frame: a head that is interrupted by data")
def _(lab, recorder):
    ended_with(lab, frame(HEADERS, POST, 0, 1) + frame(DATA, b"x", END_STREAM, 1), "PROTOCOL_ERROR")


def preface(lab, data):
    """What does not begin as it should is ended, or answered in HTTP/1.1."""
    with Caller2(lab.port, b"") as caller:
        caller.push(data)
        heard = bytearray()
        caller.sock.settimeout(4)
        try:
            while piece := caller.sock.recv(65536):
                heard += piece
        except TimeoutError:
            return bytes(heard), "open"
        except OSError:
            return bytes(heard), "reset"
        return bytes(heard), "closed"


@flood("preface: half of it, and silence")
def _(lab, recorder):
    heard, how = preface(lab, PREFACE[:10])
    expect(how != "open", f"the connection stays open; came {heard!r}")


@flood("preface: garbled at its end")
def _(lab, recorder):
    heard, how = preface(lab, PREFACE[:-4] + b"XX\r\n" + settings())
    expect(how != "open" and b" 200 " not in heard, f"{how}; came {heard!r}")


@flood("preface: no SETTINGS behind it")
def _(lab, recorder):
    ended_with_first(lab, PREFACE + headers(GET))


@flood("preface: garbage behind it")
def _(lab, recorder):
    ended_with_first(lab, PREFACE + b"GET /smuggled HTTP/1.1\r\nHost: a.test\r\n\r\n")


@flood("preface: twice")
def _(lab, recorder):
    ended_with_first(lab, PREFACE + settings() + PREFACE)


@flood("preface: a request of HTTP/1.1 in a frame's place")
def _(lab, recorder):
    recorder.mark()
    ended_with_first(lab, PREFACE + settings() + b"GET /smuggled HTTP/1.1\r\nHost: a.test\r\n\r\n" * 10)
    expect(not recorder.seen(), f"the upstream saw {recorder.seen()}")


@flood("preface: alone, and silence")
def _(lab, recorder):
    heard, how = preface(lab, PREFACE)
    expect(how != "open", "the connection stays open")


def ended_with_first(lab, data):
    with Caller2(lab.port, b"") as caller:
        caller.push(data)
        expect(caller.wait(lambda: caller.ended, 1), "the connection goes on")


@flood("upgrade: h2c by Upgrade, and frames behind it")
def _(lab, recorder):
    """It is answered as HTTP/1.1, and what comes behind it is no HTTP/2."""
    recorder.mark()
    start = b"GET /a HTTP/1.1\r\nHost: a.test\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n\r\n"
    heard, how = preface(lab, start + PREFACE + settings() + headers(block(request(path=b"/smuggled")), 3))
    expect(b" 101 " not in heard, f"it switched: {heard!r}")
    expect(how != "open", f"the connection stays open; came {heard!r}")
    expect(not any(b"smuggled" in raw for raw in recorder.seen()), f"the upstream saw {recorder.seen()}")
