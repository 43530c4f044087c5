r"""What callers may send in HTTP/2, and what must become of it.

    case(NAME, FIELDS, EXPECTED, data=[...], trailers=[...])

FIELDS is a request's header list as it is sent, legal or not. EXPECTED is

    passed(b"GET /a", ...)    the HTTP/1.1 upstream sees exactly this request, and the caller its answer
    refused()                 an answer of 400 or above, a reset, or the end of the connection; the upstream sees nothing
    broken()                  the same, and the upstream may have seen a beginning, but never a whole request

Floods are functions, in floods.py.
"""

from typing import NamedTuple

from frames import request
from request_cases import Broken, Either, Passed, Refused

CASES = []


class Case(NamedTuple):
    name: str
    fields: object
    expected: object
    data: object
    trailers: object


def passed(line, *fields, **what):
    return Passed(line, fields, via=b"2.0", **what)


def refused():
    return Refused(())


def broken(at_most=None):
    return Broken((), at_most)


def either(one):
    return Either((one,))


def case(name, fields, expected, data=None, trailers=None):
    CASES.append(Case(name, fields, expected, data, trailers))


def get(*more, **what):
    return request(b"GET", what.get("path", b"/a"), what.get("authority", b"a.test"), *more)


def post(*more):
    return request(b"POST", b"/a", b"a.test", *more)


def without(name, fields=None):
    return [field for field in fields or get() if field[0] != name]


PLAIN = passed(b"GET /a")
SMUGGLED = b"GET /smuggled HTTP/1.1\r\nHost: a.test\r\n\r\n"

case("plain: a GET", get(), PLAIN)
case("plain: a POST", post(), passed(b"POST /a", body=b"abc", chunked=True), data=[b"abc"])
case("plain: a POST with a length", post((b"content-length", b"3")), passed(b"POST /a", body=b"abc", length=3), data=[b"abc"])
case("plain: split cookies are one", get((b"cookie", b"a=b"), (b"cookie", b"c=d"), (b"cookie", b"e=f")), passed(b"GET /a", b"cookie: a=b; c=d; e=f"))
case("plain: te: trailers", get((b"te", b"trailers")), passed(b"GET /a", b"te: trailers", b"connection: te"))
case("plain: trailers", post(), passed(b"POST /a", body=b"abc", chunked=True, trailers=(b"x-sum: 1",)), data=[b"abc"], trailers=[(b"x-sum", b"1")])
case("plain: a body that looks like chunks", post(), passed(b"POST /a", body=b"0\r\n\r\n" + SMUGGLED, chunked=True), data=[b"0\r\n\r\n" + SMUGGLED])
case("plain: a body that looks like a request", post(), passed(b"POST /a", body=SMUGGLED, chunked=True), data=[SMUGGLED])

# --- names and values ------------------------------------------------------------------------------

for label, name in {
    "capital letters": b"X-Abc", "a space": b"x abc", "CR LF": b"x-a\r\nhost", "LF": b"x-a\nb", "NUL": b"x-a\0", "a colon": b"x-a:b",
    "a colon and a space": b"x-a: b\r\ny", "nothing": b"", "a high byte": b"x-\xe4", "a control character": b"x\x01", "a tab": b"x\t",
    "a field of HTTP/1.1": b"transfer-encoding: chunked\r\nx", "a trailing space": b"x-a ", "brackets": b"x[a]", "DEL": b"x\x7f",
}.items():
    case(f"name: {label}", get((name, b"1")), refused())
for label, value in {
    "CR LF and a field": b"b\r\nHost: evil.test", "CR LF and a coding": b"b\r\nTransfer-Encoding: chunked",
    "CR LF CR LF and a request": b"b\r\n\r\n" + SMUGGLED, "LF": b"b\nc", "CR": b"b\rc", "NUL": b"b\0c", "LF at the end": b"b\n", "CR at the end": b"b\r",
    "LF at the beginning": b"\nb", "only LF": b"\n",
}.items():
    case(f"value: {label}", get((b"x-a", value)), refused())
case("value: a control character", get((b"x-a", b"b\x01c")), refused())
case("value: DEL", get((b"x-a", b"b\x7fc")), refused())
case("value: high bytes stay", get((b"x-a", b"\xc3\xa4\xff")), passed(b"GET /a", b"x-a: \xc3\xa4\xff"))
case("value: white space around it is no part of it", get((b"x-a", b" b ")), either(passed(b"GET /a", b"x-a: b")))
case("value: a tab before it", get((b"x-a", b"\tb")), either(passed(b"GET /a", b"x-a: b")))
case("value: in a cookie, CR LF", get((b"cookie", b"a=b\r\nX-A: b")), refused())

# --- fields of one connection ----------------------------------------------------------------------

for name, value in [(b"connection", b"x-a"), (b"connection", b"close"), (b"transfer-encoding", b"chunked"), (b"transfer-encoding", b"identity"),
                    (b"te", b"gzip"), (b"te", b"trailers, gzip"), (b"te", b"chunked"), (b"upgrade", b"h2c"), (b"upgrade", b"websocket"), (b"keep-alive", b"5"),
                    (b"proxy-connection", b"keep-alive")]:
    case(f"connection: {name.decode()}: {value.decode()}", get((name, value)), refused())
case("connection: transfer-encoding in a request with a body", post((b"transfer-encoding", b"chunked")), refused(), data=[b"0\r\n\r\n" + SMUGGLED])
case("connection: http2-settings goes no further", get((b"http2-settings", b"AAMAAABkAAQAAP__")), either(PLAIN))
case("connection: proxy-authorization goes no further", get((b"proxy-authorization", b"Basic eA==")), PLAIN)
case("connection: transfer_encoding is no coding", post((b"transfer_encoding", b"chunked")), passed(b"POST /a", body=b"abc", chunked=True), data=[b"abc"])
case("connection: x_forwarded_for does not pass for x-forwarded-for", get((b"x_forwarded_for", b"9.9.9.9")), PLAIN)
case("connection: x-forwarded-for of a stranger is not believed", get((b"x-forwarded-for", b"9.9.9.9")), PLAIN)

# --- pseudo-header fields --------------------------------------------------------------------------

for name in (b":method", b":scheme", b":path", b":authority"):
    case(f"pseudo: two of {name.decode()}", [field for field in get() for _ in range(2 if field[0] == name else 1)], refused())
    if name != b":authority":
        case(f"pseudo: no {name.decode()}", without(name), refused())
case("pseudo: two of :path that differ", [*get(), (b":path", b"/b")], refused())
case("pseudo: unknown", [*get(), (b":frob", b"1")], refused())
case("pseudo: :status", [*get(), (b":status", b"200")], refused())
case("pseudo: :protocol without CONNECT", [*get(), (b":protocol", b"websocket")], refused())
case("pseudo: a bare colon", [*get(), (b":", b"1")], refused())
case("pseudo: after a field", [*get()[:3], (b"x-a", b"b"), get()[3]], refused())
case("pseudo: :path after a field", [*without(b":path"), (b"x-a", b"b"), (b":path", b"/a")], refused())
case("pseudo: in trailers", post(), broken(), data=[b"abc"], trailers=[(b":path", b"/b")])
case("pseudo: in trailers, after a field", post(), broken(), data=[b"abc"], trailers=[(b"x-a", b"b"), (b":path", b"/b")])
case("pseudo: unknown, in trailers", post(), broken(), data=[b"abc"], trailers=[(b":frob", b"1")])
case("pseudo: :scheme is ftp", [(name, b"ftp" if name == b":scheme" else value) for name, value in get()], refused())
case("pseudo: :scheme is empty", [(name, b"" if name == b":scheme" else value) for name, value in get()], refused())
case("pseudo: :scheme is a URL", [(name, b"http://evil.test/?" if name == b":scheme" else value) for name, value in get()], refused())
case("pseudo: :scheme is https on a plain connection", [(name, b"https" if name == b":scheme" else value) for name, value in get()], either(PLAIN))
for label, value in {
    "a space": b"GET /b", "a whole line": b"GET /b HTTP/1.1\r\nHost: a.test\r\n\r\nGET", "CR LF": b"GET\r\n", "nothing": b"", "NUL": b"G\0T", "a high byte": b"G\xcbT",
}.items():
    case(f"method: {label}", request(value), refused())
case("method: CONNECT", [(b":method", b"CONNECT"), (b":authority", b"a.test:443")], refused())
case("method: CONNECT with a path", request(b"CONNECT"), refused())
case("method: TRACE", request(b"TRACE"), refused())
case("method: small letters are another method", request(b"get"), passed(b"get /a"))
case("method: extended CONNECT to h2c", [(b":method", b"CONNECT"), (b":protocol", b"h2c"), *get()[1:]], refused())
case("method: extended CONNECT with CR LF", [(b":method", b"CONNECT"), (b":protocol", b"x\r\nHost: evil.test"), *get()[1:]], refused())
for label, value in {
    "nothing": b"", "no slash": b"a", "a control character": b"/a\x01", "CR LF": b"/a\r\nX-A: b", "a space": b"/a b",
    "a whole line": b"/ HTTP/1.1\r\nHost: evil.test\r\n\r\nGET /smuggled", "NUL": b"/\0", "raw UTF-8": b"/\xc3\xa4", "an absolute URL": b"http://b.test/a",
    "a tab": b"/a\tb", "%00": b"/%00", "a backslash": b"/a\\b", "a bad escape": b"/%zz", "an asterisk": b"*", "hidden dots": b"/a/..%2fb",
    "a version": b"/a HTTP/1.0", "DEL": b"/\x7f", "a high byte in the query": b"/a?\xff", "a space in the query": b"/a?b c",
}.items():
    case(f"path: {label}", get(path=value), refused())
case("path: an asterisk for OPTIONS", request(b"OPTIONS", b"*"), refused())
case("path: a fragment is for the caller alone", get(path=b"/a#b"), PLAIN)
case("path: dot segments", get(path=b"/x/%2e%2e//a"), PLAIN)
case("path: an authority in it", get(path=b"//b.test/a"), passed(b"GET /b.test/a"))
case("path: 70,000 bytes", get(path=b"/" + b"a" * 70_000), refused())

# --- :authority and Host ---------------------------------------------------------------------------

case("authority: Host is another", get((b"host", b"b.test")), refused())
case("authority: Host is the same", get((b"host", b"a.test")), PLAIN)
case("authority: Host alone", [*without(b":authority"), (b"host", b"b.test")], passed(b"GET /a", host=b"b.test"))
case("authority: neither", without(b":authority"), refused())
case("authority: two of Host", [*without(b":authority"), (b"host", b"a.test"), (b"host", b"b.test")], refused())
case("authority: two of Host, one as it should be", get((b"host", b"a.test"), (b"host", b"b.test")), refused())
for label, value in {
    "nothing": b"", "a path": b"a.test/x", "a user": b"u@a.test", "a space": b"a.test b", "CR LF": b"a.test\r\nX-A: b", "a list": b"a.test, b.test",
    "a bad port": b"a.test:99999", "a high byte": b"a\xe4.test", "a URL": b"http://a.test", "NUL": b"a\0", "a fragment": b"a.test#b", "a backslash": b"a.test\\b",
}.items():
    case(f"authority: {label}", get(authority=value), refused())
    if label not in ("nothing",):
        case(f"authority: {label}, in Host alone", [*without(b":authority"), (b"host", value)], refused())
case("authority: nothing, and a Host", get((b"host", b"b.test"), authority=b""), refused())

# --- lengths ---------------------------------------------------------------------------------------

for label, value in {"less than comes": b"2", "more than comes": b"4", "nothing": b"", "a plus": b"+3", "a list": b"3, 3", "a word": b"abc", "a minus": b"-3",
                     "hexadecimal": b"0x3", "2^64": b"18446744073709551616", "white space": b"3 3"}.items():
    case(f"length: {label}", post((b"content-length", value)), broken(), data=[b"abc"])
# Here the announced body is whole before it is known that more comes. One request, and no more, may be seen.
case("length: zero, and data comes", post((b"content-length", b"0")), broken(passed(b"POST /a", length=0)), data=[SMUGGLED])
case("length: less than comes, in a second frame", post((b"content-length", b"3")), broken(passed(b"POST /a", body=b"abc", length=3)), data=[b"abc", SMUGGLED])
case("length: two that differ", post((b"content-length", b"3"), (b"content-length", b"4")), broken(), data=[b"abc"])
case("length: two that differ, the other way round", post((b"content-length", b"4"), (b"content-length", b"3")), broken(), data=[b"abc"])
case("length: two that differ, and the second is a smuggler's", post((b"content-length", b"3"), (b"content-length", b"0")), broken(), data=[b"abc"])
case("length: two that are the same", post((b"content-length", b"3"), (b"content-length", b"3")), either(passed(b"POST /a", body=b"abc", length=3)), data=[b"abc"])
case("length: leading zeros", post((b"content-length", b"003")), either(passed(b"POST /a", body=b"abc", length=3)), data=[b"abc"])
case("length: one, and no data", post((b"content-length", b"3")), broken())
case("length: one, and no data, of a GET", get((b"content-length", b"3")), broken())
case("length: one, and no data but trailers", post((b"content-length", b"3")), broken(), trailers=[(b"x-sum", b"1")])
case("length: zero, and no data", post((b"content-length", b"0")), passed(b"POST /a", length=0))
case("length: zero, and an empty frame", post((b"content-length", b"0")), passed(b"POST /a", length=0), data=[b""])
case("length: content_length is no length", post((b"content_length", b"99")), passed(b"POST /a", body=b"abc", chunked=True), data=[b"abc"])
case("length: a GET with a body", get(), passed(b"GET /a", body=b"abc", chunked=True), data=[b"abc"])
case("length: in pieces, with empty ones", post((b"content-length", b"3")), passed(b"POST /a", body=b"abc", length=3), data=[b"", b"a", b"", b"bc", b""])
case("length: too large for the gateway", post((b"content-length", b"99999999999")), refused())

# --- trailers --------------------------------------------------------------------------------------

for name in (b"content-length", b"host", b"authorization", b"x-forwarded-for", b"cookie", b"content-type", b"trailer", b"x_forwarded_for"):
    case(f"trailer: {name.decode()} is none", post(), either(passed(b"POST /a", body=b"abc", chunked=True)), data=[b"abc"], trailers=[(name, b"9")])
for label, name, value in [("transfer-encoding", b"transfer-encoding", b"chunked"), ("connection", b"connection", b"close"), ("capital letters", b"X-Sum", b"1"),
                           ("CR LF in a value", b"x-sum", b"1\r\n\r\n" + SMUGGLED), ("CR LF in a name", b"x\r\ny", b"1"), ("NUL in a value", b"x-sum", b"\0")]:
    case(f"trailer: {label}", post(), broken(), data=[b"abc"], trailers=[(name, value)])

# --- expectations ----------------------------------------------------------------------------------

case("expect: 100-continue", post((b"expect", b"100-continue")), passed(b"POST /a", body=b"abc", chunked=True), data=[b"abc"])
case("much: 99 fields", get(*[(b"x-%d" % index, b"1") for index in range(99)]), passed(b"GET /a", *[b"x-%d: 1" % index for index in range(99)]))
case("much: 200 fields", get(*[(b"x-%d" % index, b"1") for index in range(200)]), refused())
case("much: a value of 70,000 bytes", get((b"x-a", b"a" * 70_000)), refused())
case("much: a list of 200,000 bytes", get(*[(b"x-%d" % index, b"a" * 2000) for index in range(100)]), refused())
case("much: a cookie in 2,000 pieces", get(*[(b"cookie", b"a=%d" % index) for index in range(2000)]), refused())
