r"""What upstreams may answer in HTTP/1.1, byte by byte, and what the caller must get of it.

    case(NAME, SCRIPT, EXPECTED, ...)

SCRIPT is what the upstream does when it is asked: bytes are sent, a number is a pause in seconds, CLOSE
and RESET end the connection, FLOOD repeats the bytes before it for seconds. EXPECTED is one of

    bad(502)                      one of these statuses, from the gateway itself
    whole(200, b"body", ...)      this answer to its end, with exactly these fields and trailers
    cut(200)                      a beginning that cannot be taken for a whole
    either(whole(...), bad(502))  one of these: RFC 9112 leaves the choice, and the runner says which was made

After each case another request must get its own answer. `reuses` says whether it may go (True), must not go
(False) over the same connection to the upstream; None leaves it open. `asked` is how often the upstream must
have been asked. `pooled` gives the gateway an idle connection before, `again` is what happens the second time.
"""

from typing import NamedTuple

CASES = []
CLOSE, RESET, FLOOD = "close", "reset", "flood"


class Bad(NamedTuple):
    statuses: tuple


class Whole(NamedTuple):
    status: int
    body: bytes = b""
    fields: tuple = ()
    trailers: tuple = ()
    interim: tuple = ()


class Cut(NamedTuple):
    status: int


class Case(NamedTuple):
    name: str
    script: list
    expected: list
    method: bytes
    fields: bytes
    body: bytes
    reuses: object
    asked: int
    pooled: bool
    again: object
    greeting: bytes
    version: bytes


def bad(*statuses):
    return [Bad(statuses or (502,))]


def whole(status, body=b"", *fields, trailers=(), interim=()):
    return [Whole(status, body, fields, trailers, interim)]


def cut(status=200):
    return [Cut(status)]


def either(*choices):
    return [choice[0] for choice in choices]


def case(name, script, expected, method=b"GET", fields=b"", body=b"", reuses=None, asked=1, pooled=False, again=None,
         greeting=b"", version=b"HTTP/1.1"):
    script = script if isinstance(script, list) else [script]
    CASES.append(Case(name, script, expected, method, fields, body, reuses, asked, pooled, again, greeting, version))


def ok(*fields, body=b""):
    """A 200 with these field lines."""
    return b"HTTP/1.1 200 OK\r\n" + b"".join(field + b"\r\n" for field in fields) + b"\r\n" + body


def chunks(body, *fields):
    return ok(b"Transfer-Encoding: chunked", *fields, body=body)


ABC = ok(b"Content-Length: 3", body=b"abc")
STOLEN = b"HTTP/1.1 200 OK\r\nX-Stolen: yes\r\nContent-Length: 6\r\n\r\nstolen"

# --- what is plain ---------------------------------------------------------------------------------

case("plain: a length", ABC, whole(200, b"abc"), reuses=True)
case("plain: chunks", chunks(b"3\r\nabc\r\n0\r\n\r\n"), whole(200, b"abc"), reuses=True)
case("plain: until the connection closes", [ok(body=b"abc"), CLOSE], whole(200, b"abc"), reuses=False)
case("plain: byte by byte", [part for byte in chunks(b"3\r\nabc\r\n0\r\n\r\n") for part in (bytes([byte]), 0.0005)],
     whole(200, b"abc"), reuses=True)
case("plain: no content", b"HTTP/1.1 204 No Content\r\n\r\n", whole(204), reuses=True)
case("plain: no reason", b"HTTP/1.1 200 \r\nContent-Length: 3\r\n\r\nabc", whole(200, b"abc"), reuses=True)
case("plain: high bytes in the reason", b"HTTP/1.1 200 \xc3\xa4\r\nContent-Length: 3\r\n\r\nabc", whole(200, b"abc"))

# --- the status line -------------------------------------------------------------------------------

REST = b"\r\nContent-Length: 3\r\n\r\nabc"
for label, line in {
    "a word": b"hello", "no status": b"HTTP/1.1 OK", "two digits": b"HTTP/1.1 20 OK", "four digits": b"HTTP/1.1 2000 OK",
    "letters": b"HTTP/1.1 2OO OK", "below 100": b"HTTP/1.1 099 OK", "zero": b"HTTP/1.1 000 OK", "two spaces": b"HTTP/1.1  200 OK",
    "a tab": b"HTTP/1.1\t200 OK", "HTTP/2.0": b"HTTP/2.0 200 OK", "HTTP/1.2": b"HTTP/1.2 200 OK", "HTTP/0.9": b"HTTP/0.9 200 OK",
    "small letters": b"http/1.1 200 OK", "another protocol": b"ICY 200 OK", "NUL in the reason": b"HTTP/1.1 200 O\0K",
    "a control character in the reason": b"HTTP/1.1 200 O\x01K", "CR in the reason": b"HTTP/1.1 200 O\rX-A: b",
    "a space before it": b" HTTP/1.1 200 OK", "NUL before it": b"\0HTTP/1.1 200 OK", "a minus": b"HTTP/1.1 -200 OK",
    "a plus": b"HTTP/1.1 +20 OK",
}.items():
    case(f"status: {label}", line + REST, bad(502), reuses=False)
case("status: nothing behind it", b"HTTP/1.1 200" + REST, either(whole(200, b"abc"), bad(502)))
case("status: 999", b"HTTP/1.1 999 X" + REST, either(whole(999, b"abc"), bad(502)))
case("status: 600", b"HTTP/1.1 600 X" + REST, either(whole(600, b"abc"), bad(502)))
case("status: empty lines before it", b"\r\n\r\n" + ABC, either(whole(200, b"abc"), bad(502)))
case("status: HTTP/0.9, nothing but a body", [b"<html>hello</html>\n", CLOSE], bad(502))
case("status: frames of HTTP/2", b"\0\0\x12\4\0\0\0\0\0\0\3\0\0\0\x80\0\4\0\1\0\0\0\5\0\xff\xff\xff", bad(502), reuses=False)
case("status: the preface of HTTP/2", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", bad(502), reuses=False)
case("status: a TLS alert", [b"\x15\x03\x01\x00\x02\x02\x46", CLOSE], bad(502))
case("status: a request", b"GET / HTTP/1.1\r\nHost: a.test\r\n\r\n", bad(502), reuses=False)

# --- lines and fields ------------------------------------------------------------------------------

case("line end: LF after the status", b"HTTP/1.1 200 OK\nContent-Length: 3\r\n\r\nabc", either(whole(200, b"abc"), bad(502)))
case("line end: LF after a field", b"HTTP/1.1 200 OK\r\nContent-Length: 3\n\r\nabc", either(whole(200, b"abc"), bad(502)))
case("line end: LF everywhere", b"HTTP/1.1 200 OK\nContent-Length: 3\n\nabc", either(whole(200, b"abc"), bad(502)))
case("line end: CR after a field", b"HTTP/1.1 200 OK\r\nContent-Length: 3\rX-A: b\r\n\r\nabc", bad(502), reuses=False)
case("line end: CR in a value", ok(b"X-A: b\rSet-Cookie: c", b"Content-Length: 3", body=b"abc"), bad(502), reuses=False)
for label, line in {
    "folded": b"X-A: b\r\n c", "folded by a tab": b"X-A: b\r\n\tc", "a space before the colon": b"X-A : b",
    "Content-Length with a space before the colon": b"Content-Length : 9", "NUL in a value": b"X-A: b\0c", "NUL in a name": b"X\0A: b",
    "a control character in a value": b"X-A: b\x01c", "DEL in a value": b"X-A: b\x7fc", "no colon": b"X-A", "no name": b": b",
    "a space in a name": b"X A: b", "a high byte in a name": b"X-\xe4: b", "brackets in a name": b"X[A]: b",
}.items():
    case(f"field: {label}", ok(b"Content-Length: 3", line, body=b"abc"), bad(502), reuses=False)
case("field: the first is folded", b"HTTP/1.1 200 OK\r\n X-A: b\r\nContent-Length: 3\r\n\r\nabc", bad(502), reuses=False)
case("field: high bytes in a value stay", ok(b"X-A: \xc3\xa4\xff", b"Content-Length: 3", body=b"abc"), whole(200, b"abc", b"x-a: \xc3\xa4\xff"))
case("field: 99 of them", ok(b"Content-Length: 3", *[b"X-%d: 1" % index for index in range(98)], body=b"abc"),
     whole(200, b"abc", *[b"x-%d: 1" % index for index in range(98)]))
case("field: 200 of them", ok(b"Content-Length: 3", *[b"X-%d: 1" % index for index in range(200)], body=b"abc"), bad(502), reuses=False)
case("field: 70,000 bytes", ok(b"Content-Length: 3", b"X-A: " + b"a" * 70_000, body=b"abc"), bad(502), reuses=False)
case("field: a head without an end", [b"HTTP/1.1 200 OK\r\n", b"X-A: b\r\n", FLOOD], bad(502), reuses=False)
case("field: a value without an end", [b"HTTP/1.1 200 OK\r\nX-A: ", b"a" * 1000, FLOOD], bad(502), reuses=False)

# --- framing ---------------------------------------------------------------------------------------

for label, lines in {
    "two that differ": (b"Content-Length: 3", b"Content-Length: 4"), "a list": (b"Content-Length: 3, 3",),
    "a list that differs": (b"Content-Length: 3, 4",), "a plus": (b"Content-Length: +3",), "a minus": (b"Content-Length: -3",),
    "hexadecimal": (b"Content-Length: 0x3",), "nothing": (b"Content-Length:",), "2^64": (b"Content-Length: 18446744073709551616",),
    "a word": (b"Content-Length: abc",), "a point": (b"Content-Length: 3.0",), "white space": (b"Content-Length: 3 3",),
    "a coding behind it": (b"Content-Length: 3", b"Transfer-Encoding: chunked"),
    "a coding before it": (b"Transfer-Encoding: chunked", b"Content-Length: 3"),
}.items():
    case(f"length: {label}", ok(*lines, body=b"3\r\nabc\r\n0\r\n\r\n"), bad(502), reuses=False)
case("length: twice the same", ok(b"Content-Length: 3", b"Content-Length: 3", body=b"abc"), either(whole(200, b"abc"), bad(502)))
case("length: leading zeros", ok(b"Content-Length: 003", body=b"abc"), either(whole(200, b"abc"), bad(502)))
for value in (b"xchunked", b"gzip, chunked", b"gzip", b"identity", b"chunked, chunked", b"chunked, identity", b"chunked;q=1", b'"chunked"',
              b"\x0bchunked", b"chunked\x0b", b",chunked", b"chunked,", b"", b"cow"):
    case(f"coding: {value.decode()!r}", ok(b"Transfer-Encoding: " + value, body=b"3\r\nabc\r\n0\r\n\r\n"), bad(502), reuses=False)
case("coding: two fields", ok(b"Transfer-Encoding: chunked", b"Transfer-Encoding: chunked", body=b"3\r\nabc\r\n0\r\n\r\n"), bad(502), reuses=False)
case("coding: in HTTP/1.0", b"HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n", bad(502), reuses=False)
case("coding: capital letters", ok(b"Transfer-Encoding: Chunked", body=b"3\r\nabc\r\n0\r\n\r\n"), whole(200, b"abc"), reuses=True)

# --- chunks ----------------------------------------------------------------------------------------

for label, body in {
    "a size with a plus": b"+3\r\nabc\r\n0\r\n\r\n", "a size with 0x": b"0x3\r\nabc\r\n0\r\n\r\n", "a size with a minus": b"-3\r\nabc\r\n0\r\n\r\n",
    "no size": b"\r\nabc\r\n0\r\n\r\n", "a leading space": b" 3\r\nabc\r\n0\r\n\r\n", "an underscore": b"0_3\r\nabc\r\n0\r\n\r\n",
    "2^64": b"10000000000000000\r\nabc\r\n0\r\n\r\n", "LF behind the size": b"3\nabc\r\n0\r\n\r\n", "CR behind the size": b"3\rabc\r\n0\r\n\r\n",
    "no line end behind the data": b"3\r\nabc0\r\n\r\n", "LF behind the data": b"3\r\nabc\n0\r\n\r\n", "too much data": b"3\r\nabcd\r\n0\r\n\r\n",
    "a long extension": b"3;" + b"a" * 5000 + b"\r\nabc\r\n0\r\n\r\n", "NUL in an extension": b"3;\0\r\nabc\r\n0\r\n\r\n",
    "LF in an extension": b"3;a\nb\r\nabc\r\n0\r\n\r\n", "a garbled second size": b"3\r\nabc\r\nzz\r\n0\r\n\r\n",
    "a folded trailer": b"3\r\nabc\r\n0\r\nX-A: b\r\n c\r\n\r\n", "a trailer without a colon": b"3\r\nabc\r\n0\r\nX-A\r\n\r\n",
    "NUL in a trailer": b"3\r\nabc\r\n0\r\nX-A: \0\r\n\r\n", "CR for the last line": b"3\r\nabc\r\n0\r\n\rX",
    "trailers without an end": b"3\r\nabc\r\n0\r\n" + b"X-A: b\r\n" * 5000,
}.items():
    case(f"chunk: {label}", chunks(body), cut(), reuses=False)
case("chunk: LF for the last line", chunks(b"3\r\nabc\r\n0\r\n\n"), either(whole(200, b"abc"), cut()))
case("chunk: an extension", chunks(b'3;a="b"\r\nabc\r\n0;c\r\n\r\n'), whole(200, b"abc"), reuses=True)
case("chunk: white space behind the size", chunks(b"3 \r\nabc\r\n0\r\n\r\n"), either(whole(200, b"abc"), cut()))

# --- what breaks off -------------------------------------------------------------------------------

case("break: without a byte", [CLOSE], bad(502))
case("break: without a byte, by a reset", [RESET], bad(502))
case("break: in the status line", [b"HTTP/1.1 20", CLOSE], bad(502))
case("break: in a field", [b"HTTP/1.1 200 OK\r\nContent-Le", CLOSE], bad(502))
case("break: before the empty line", [b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n", CLOSE], bad(502))
case("break: after an interim answer", [b"HTTP/1.1 103 Early Hints\r\n\r\n", CLOSE], bad(502))
case("break: in a body with a length", [ok(b"Content-Length: 9", body=b"abc"), CLOSE], cut())
case("break: before a body with a length", [ok(b"Content-Length: 9"), 0.02, CLOSE], cut())
case("break: in a body with a length, by a reset", [ok(b"Content-Length: 9", body=b"abc"), 0.02, RESET], cut())
case("break: in a chunk", [chunks(b"9\r\nabc"), CLOSE], cut())
case("break: in a size", [chunks(b"3\r\nabc\r\n1"), CLOSE], cut())
case("break: before the last chunk", [chunks(b"3\r\nabc\r\n"), CLOSE], cut())
case("break: after the last chunk's size", [chunks(b"3\r\nabc\r\n0\r\n"), CLOSE], cut())
case("break: in a trailer", [chunks(b"3\r\nabc\r\n0\r\nX-A: b\r\n"), CLOSE], cut())
case("break: in a body until the close, by a reset", [ok(body=b"abc"), 0.03, RESET], cut())
case("break: in a chunk, and the caller speaks HTTP/1.0", [chunks(b"9\r\nabc"), 0.02, CLOSE], cut(), version=b"HTTP/1.0")
case("break: silence", [0.1, 3.3], bad(504), reuses=False)
case("break: silence in the head", [b"HTTP/1.1 200 OK\r\n", 3.3], bad(502, 504), reuses=False)

# --- asked again, and not --------------------------------------------------------------------------

case("again: GET over an idle connection that closes is sent again", [CLOSE], whole(200, b"abc"), pooled=True, asked=2, again=[ABC])
case("again: GET over an idle connection is sent again once", [CLOSE], bad(502), pooled=True, asked=2, again=[CLOSE])
case("again: POST over an idle connection that closes is not", [CLOSE], bad(502), pooled=True, method=b"POST")
case("again: POST with a body over an idle connection that closes is not", [CLOSE], bad(502), pooled=True, method=b"POST", body=b"abc")
case("again: PUT with a body is not", [CLOSE], bad(502), pooled=True, method=b"PUT", body=b"abc")
case("again: GET over a new connection that closes is not", [CLOSE], bad(502), again=[ABC])
case("again: GET after the beginning of an answer is not", [b"HTTP/1.1 2", CLOSE], bad(502), pooled=True, again=[ABC])
case("again: GET after an interim answer is not", [b"HTTP/1.1 103 Early Hints\r\n\r\n", CLOSE], bad(502), pooled=True, again=[ABC])
case("again: GET after a garbled answer is not", [b"hello\r\n\r\n"], bad(502), pooled=True, again=[ABC], reuses=False)

# --- what comes unasked ----------------------------------------------------------------------------

case("unasked: bytes behind a body", ok(b"Content-Length: 3", body=b"abcdef"), whole(200, b"abc"), reuses=False)
case("unasked: an answer behind a body", ABC + STOLEN, whole(200, b"abc"), reuses=False)
case("unasked: an answer behind the last chunk", chunks(b"3\r\nabc\r\n0\r\n\r\n") + STOLEN, whole(200, b"abc"), reuses=False)
case("unasked: an answer while the connection is idle", [ABC, 0.03, STOLEN], whole(200, b"abc"), reuses=False)
case("unasked: half an answer while the connection is idle", [ABC, 0.03, STOLEN[:20]], whole(200, b"abc"), reuses=False)
case("unasked: one byte while the connection is idle", [ABC, 0.03, b"\n"], whole(200, b"abc"), reuses=False)
case("unasked: an interim answer while the connection is idle", [ABC, 0.03, b"HTTP/1.1 103 Early Hints\r\n\r\n"], whole(200, b"abc"), reuses=False)
case("unasked: an empty line while the connection is idle", [ABC, 0.03, b"\r\n"], whole(200, b"abc"), reuses=False)
case("unasked: a close while the connection is idle", [ABC, 0.03, CLOSE], whole(200, b"abc"), reuses=False)
case("unasked: a reset while the connection is idle", [ABC, 0.03, RESET], whole(200, b"abc"), reuses=False)
case("unasked: an answer before any request", ABC, either(whole(200, b"stolen", b"x-stolen: yes"), whole(200, b"abc"), bad(502)), greeting=STOLEN, reuses=False)
case("unasked: a body behind 204", b"HTTP/1.1 204 No Content\r\n\r\nabc", whole(204), reuses=False)
case("unasked: a body behind 204, and its length", b"HTTP/1.1 204 No Content\r\nContent-Length: 3\r\n\r\nabc",
     either(whole(204), bad(502)), reuses=False)
case("unasked: an answer behind 204", b"HTTP/1.1 204 No Content\r\nContent-Length: %d\r\n\r\n" % len(STOLEN) + STOLEN,
     either(whole(204), bad(502)), reuses=False)
case("unasked: chunks behind 204", b"HTTP/1.1 204 No Content\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", either(whole(204), bad(502)), reuses=False)
case("unasked: a body behind 304", b"HTTP/1.1 304 Not Modified\r\nContent-Length: 3\r\n\r\nabc", either(whole(304, b"", b"content-length: 3"), whole(304)), reuses=False)
case("unasked: an answer behind 304", b"HTTP/1.1 304 Not Modified\r\n\r\n" + STOLEN, whole(304), reuses=False)
case("unasked: a body behind the answer to HEAD", ABC, whole(200, b"", b"content-length: 3"), method=b"HEAD", reuses=False)
case("unasked: an answer behind the answer to HEAD", ok(b"Content-Length: %d" % len(STOLEN), body=STOLEN),
     whole(200, b"", b"content-length: %d" % len(STOLEN)), method=b"HEAD", reuses=False)
case("unasked: chunks behind the answer to HEAD", chunks(b"3\r\nabc\r\n0\r\n\r\n"), whole(200), method=b"HEAD", reuses=False)
case("unasked: nothing behind the answer to HEAD", ok(b"Content-Length: 3"), whole(200, b"", b"content-length: 3"), method=b"HEAD", reuses=True)
case("unasked: a body behind an interim answer", b"HTTP/1.1 103 Early Hints\r\nContent-Length: 3\r\n\r\nabc" + ABC,
     bad(502), reuses=False)
case("unasked: the answer before the request has ended", [b"HTTP/1.1 413 No\r\nContent-Length: 3\r\n\r\nabc"], whole(413, b"abc"),
     method=b"POST", fields=b"Content-Length: 100000\r\n", body=b"abc", reuses=False)

# --- interim answers -------------------------------------------------------------------------------

HINT = b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n"
case("interim: one", HINT + ABC, whole(200, b"abc", interim=(103,)), reuses=True)
case("interim: three", HINT * 3 + ABC, whole(200, b"abc", interim=(103,) * 3), reuses=True)
case("interim: a 100 that nobody asked for", b"HTTP/1.1 100 Continue\r\n\r\n" + ABC, whole(200, b"abc"), reuses=True)
case("interim: 102", b"HTTP/1.1 102 Processing\r\n\r\n" + ABC, whole(200, b"abc", interim=(102,)), reuses=True)
case("interim: 199", b"HTTP/1.1 199 X\r\n\r\n" + ABC, either(whole(200, b"abc", interim=(199,)), whole(200, b"abc")))
case("interim: not for HTTP/1.0", HINT + ABC, whole(200, b"abc"), version=b"HTTP/1.0")
case("interim: a hundred, of which most are left out", HINT * 100 + ABC, whole(200, b"abc", interim=(103,) * 32), reuses=True)
case("interim: with Connection and Content-Length", b"HTTP/1.1 103 Early Hints\r\nConnection: X-Hop\r\nX-Hop: 1\r\nContent-Length: 0\r\n\r\n" + ABC,
     whole(200, b"abc", interim=(103,)), reuses=True)
case("interim: without an end", [HINT * 20, FLOOD], bad(502, 504), reuses=False)
case("interim: folded", b"HTTP/1.1 103 Early Hints\r\nX-A: b\r\n c\r\n\r\n" + ABC, bad(502), reuses=False)
case("interim: 101 that nobody asked for", b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: frob\r\n\r\n", bad(502), reuses=False)
case("interim: 101 without Upgrade", b"HTTP/1.1 101 Switching Protocols\r\n\r\n", bad(502), fields=b"Connection: upgrade\r\nUpgrade: frob\r\n", reuses=False)
case("interim: 101 to another protocol", b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: other\r\n\r\n", bad(502),
     fields=b"Connection: upgrade\r\nUpgrade: frob\r\n", reuses=False)
case("interim: 101 to two protocols", b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: frob, other\r\n\r\n", bad(502),
     fields=b"Connection: upgrade\r\nUpgrade: frob\r\n", reuses=False)
case("interim: 101 with Upgrade twice", b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: other\r\nUpgrade: frob\r\n\r\n",
     either(bad(502), whole(101, b"", b"connection: upgrade", b"upgrade: frob")), fields=b"Connection: upgrade\r\nUpgrade: frob\r\n", reuses=False)
case("interim: 101 to WebSocket with a wrong key",
     b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Accept: AAAA\r\n\r\n", bad(502),
     fields=b"Connection: upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n", reuses=False)
case("interim: 101 as it was asked for", b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: frob\r\n\r\n",
     whole(101, b"", b"connection: upgrade", b"upgrade: frob"), fields=b"Connection: upgrade\r\nUpgrade: frob\r\n", reuses=False)
case("interim: an upgrade that is answered with 200", ABC, whole(200, b"abc"), fields=b"Connection: upgrade\r\nUpgrade: frob\r\n", reuses=True)

# --- what belongs to the connection ----------------------------------------------------------------

case("connection: names a field", ok(b"Connection: X-Hop", b"X-Hop: 1", b"X-A: b", b"Content-Length: 3", body=b"abc"), whole(200, b"abc", b"x-a: b"), reuses=True)
case("connection: cannot take off what callers rely on",
     ok(b"Connection: Set-Cookie, Cache-Control, Content-Length", b"Set-Cookie: a", b"Cache-Control: no-store", b"Content-Length: 3", body=b"abc"),
     whole(200, b"abc", b"set-cookie: a", b"cache-control: no-store"), reuses=True)
case("connection: close", ok(b"Connection: close", b"Content-Length: 3", body=b"abc"), whole(200, b"abc"), reuses=False)
case("connection: close among others", ok(b"Connection: x, Close", b"Content-Length: 3", body=b"abc"), whole(200, b"abc"), reuses=False)
case("connection: fields that go no further",
     ok(b"Keep-Alive: timeout=5", b"Proxy-Connection: close", b"Proxy-Authenticate: Basic", b"Upgrade: h2c", b"TE: x", b"Content-Length: 3", body=b"abc"),
     whole(200, b"abc"), reuses=True)
case("connection: HTTP/1.0", b"HTTP/1.0 200 OK\r\nContent-Length: 3\r\n\r\nabc", whole(200, b"abc"), reuses=False)
case("connection: HTTP/1.0, kept alive", b"HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 3\r\n\r\nabc", whole(200, b"abc"), reuses=True)
case("connection: HTTP/1.0, kept alive and closed", b"HTTP/1.0 200 OK\r\nConnection: keep-alive, close\r\nContent-Length: 3\r\n\r\nabc",
     whole(200, b"abc"), reuses=False)
case("connection: HTTP/1.0, kept alive, without a length", [b"HTTP/1.0 200 OK\r\nConnection: keep-alive\r\n\r\nabc", 0.02, CLOSE], whole(200, b"abc"), reuses=False)

# --- trailers --------------------------------------------------------------------------------------

SUMMED = b"3\r\nabc\r\n0\r\nX-Sum: 1\r\n\r\n"
WANTS = b"TE: trailers\r\nConnection: TE\r\n"
case("trailer: for a caller who takes them", chunks(SUMMED, b"Trailer: X-Sum"), whole(200, b"abc", b"trailer: X-Sum", trailers=(b"x-sum: 1",)), fields=WANTS, reuses=True)
case("trailer: for a caller who does not say so", chunks(SUMMED, b"Trailer: X-Sum"),
     either(whole(200, b"abc", b"trailer: X-Sum"), whole(200, b"abc", b"trailer: X-Sum", trailers=(b"x-sum: 1",))), reuses=True)
for name in (b"Content-Length", b"Transfer-Encoding", b"Set-Cookie", b"Connection", b"Content-Type", b"Location", b"Keep-Alive",
             b"Upgrade", b"Proxy-Authenticate", b"Cache-Control", b"Retry-After", b"WWW-Authenticate", b"Trailer"):
    case(f"trailer: {name.decode()} is none", chunks(b"3\r\nabc\r\n0\r\n" + name + b": 9\r\n\r\n", b"Trailer: " + name),
         either(whole(200, b"abc", b"trailer: " + name), whole(200, b"abc")), fields=WANTS, reuses=True)
