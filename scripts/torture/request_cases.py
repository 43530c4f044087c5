r"""What callers may send in HTTP/1.1, byte by byte, and what must become of it.

    case(NAME, RAW, EXPECTED)

RAW is sent as it is, or in pieces if it is a list. EXPECTED is one of

    refused(400)                    one of these answers, the connection ends, the upstream sees nothing
    refused(405, keeps=True)        the same, and the connection may be used again
    passed(b"GET /a", ...)          the upstream sees exactly this request, and the caller its answer
    [passed(...), refused(400)]     one after the other, over one connection
    broken()                        the upstream may see a beginning, and never a whole request
    either(passed(...))             refused with 400 or passed on in one clear spelling: RFC 9112 leaves the
                                    choice, and the runner says which was made

`passed` names the fields that the upstream sees beside those that the gateway writes itself: Host,
X-Forwarded-*, Via, and the framing. `length` and `chunked` say how the body is framed there. A
connection that is not said to end must answer one more request.
"""

from typing import NamedTuple

CASES = []
TOO_LONG = 70_000


class Refused(NamedTuple):
    statuses: tuple
    keeps: bool = False


class Passed(NamedTuple):
    line: bytes
    fields: tuple = ()
    host: bytes = b"a.test"
    body: bytes = b""
    length: object = None
    chunked: bool = False
    trailers: tuple = ()
    ends: bool = False
    via: bytes = b"1.1"
    interim: tuple = ()


class Either(NamedTuple):
    passed: tuple


class Broken(NamedTuple):
    statuses: tuple = (400,)
    """A whole request that the upstream may see nevertheless: it was whole before it was broken."""
    at_most: object = None


class Case(NamedTuple):
    name: str
    raw: list
    expected: list
    half_closes: bool


def refused(*statuses, keeps=False):
    return Refused(statuses, keeps)


def passed(line, *fields, **what):
    return Passed(line, fields, **what)


def either(*all_passed):
    return Either(all_passed)


def broken(*statuses):
    return Broken(statuses or (400,))


def case(name, raw, expected, half_closes=False):
    raw = raw if isinstance(raw, list) else [raw]
    expected = expected if isinstance(expected, list) else [expected]
    CASES.append(Case(name, raw, expected, half_closes))


def get(*fields):
    """A GET with these field lines."""
    return b"GET /a HTTP/1.1\r\nHost: a.test\r\n" + b"".join(field + b"\r\n" for field in fields) + b"\r\n"


def post(*fields, body=b""):
    """A POST with these field lines."""
    return b"POST /a HTTP/1.1\r\nHost: a.test\r\n" + b"".join(field + b"\r\n" for field in fields) + b"\r\n" + body


def chunks(body, *fields):
    """A POST in chunks."""
    return post(b"Transfer-Encoding: chunked", *fields, body=body)


SMUGGLED = b"GET /smuggled HTTP/1.1\r\nHost: a.test\r\n\r\n"
PLAIN = passed(b"GET /a")

# --- what is plain ---------------------------------------------------------------------------------

case("plain: a GET", get(), PLAIN)
case("plain: a POST with a length", post(b"Content-Length: 3", body=b"abc"),
     passed(b"POST /a", body=b"abc", length=3))
case("plain: a POST in chunks", chunks(b"3\r\nabc\r\n0\r\n\r\n"), passed(b"POST /a", body=b"abc", chunked=True))
case("plain: a POST without a body", post(), passed(b"POST /a"))
case("plain: an empty body that says so", post(b"Content-Length: 0"), passed(b"POST /a", length=0))
case("plain: the head comes byte by byte", [bytes([byte]) for byte in get()], PLAIN)
case("plain: white space around a value is no part of it", get(b"X-A: \t  b c \t "), passed(b"GET /a", b"x-a: b c"))
case("plain: an empty value", get(b"X-A:"), passed(b"GET /a", b"x-a: "))
case("plain: names are written in small letters", get(b"X-MiXeD: A"), passed(b"GET /a", b"x-mixed: A"))
case("plain: a HEAD", b"HEAD /a HTTP/1.1\r\nHost: a.test\r\n\r\n", passed(b"HEAD /a"))
case("plain: a body that looks like a request", post(b"Content-Length: %d" % len(SMUGGLED), body=SMUGGLED),
     passed(b"POST /a", body=SMUGGLED, length=len(SMUGGLED)))
case("plain: a chunk that looks like a request", chunks(b"%x\r\n%b\r\n0\r\n\r\n" % (len(SMUGGLED), SMUGGLED)),
     passed(b"POST /a", body=SMUGGLED, chunked=True))

# --- line ends -------------------------------------------------------------------------------------

case("line end: LF after the request line", b"GET /a HTTP/1.1\nHost: a.test\r\n\r\n", either(PLAIN))
case("line end: LF after a field", b"GET /a HTTP/1.1\r\nHost: a.test\nX-A: b\r\n\r\n", either(passed(b"GET /a", b"x-a: b")))
case("line end: LF for the empty line", b"GET /a HTTP/1.1\r\nHost: a.test\r\n\n", either(PLAIN))
case("line end: LF everywhere", b"GET /a HTTP/1.1\nHost: a.test\n\n", either(PLAIN))
case("line end: LF, LF, and a request in what follows",
     b"GET /a HTTP/1.1\r\nHost: a.test\r\nX-A: b\n\nGET /smuggled HTTP/1.1\r\nHost: a.test\r\n\r\n",
     either(passed(b"GET /a", b"x-a: b"), passed(b"GET /smuggled")))
case("line end: CR after the request line", b"GET /a HTTP/1.1\rHost: a.test\r\n\r\n", refused(400))
case("line end: CR after a field", b"GET /a HTTP/1.1\r\nHost: a.test\rX-A: b\r\n\r\n", refused(400))
case("line end: CR in a value", get(b"X-A: b\rc"), refused(400))
case("line end: CR at the end of a value", get(b"X-A: b\r"), refused(400))
case("line end: CR CR LF", b"GET /a HTTP/1.1\r\nHost: a.test\r\r\n\r\n", refused(400))
case("line end: CR for the empty line", [b"GET /a HTTP/1.1\r\nHost: a.test\r\n\rGET"], refused(400))
case("line end: LF CR", b"GET /a HTTP/1.1\r\nHost: a.test\n\r\n\r", either(PLAIN), half_closes=True)
case("line end: CR hides a length", b"POST /a HTTP/1.1\r\nHost: a.test\r\nX-A: b\rContent-Length: 43\r\n\r\n" + SMUGGLED,
     refused(400))
case("line end: LF splits a value into a length", post(b"X-A: b\nContent-Length: 3", body=b"abc"),
     either(passed(b"POST /a", b"x-a: b", body=b"abc", length=3)))
case("line end: an empty line before the request", b"\r\n" + get(), PLAIN)
case("line end: two empty lines before the request", b"\r\n\r\n" + get(), either(PLAIN))
case("line end: a bare LF before the request", b"\n" + get(), either(PLAIN))
case("line end: a bare CR before the request", b"\r" + get(), refused(400))
case("line end: a space before the request", b" " + get(), refused(400))
case("line end: only empty lines", b"\r\n" * 40_000, refused(400, 408, 431), half_closes=True)

# --- control characters ----------------------------------------------------------------------------

case("control: NUL in a value", get(b"X-A: b\0c"), refused(400))
case("control: NUL in a name", get(b"X\0A: b"), refused(400))
case("control: NUL in the target", b"GET /a\0b HTTP/1.1\r\nHost: a.test\r\n\r\n", refused(400))
case("control: NUL in the method", b"G\0ET /a HTTP/1.1\r\nHost: a.test\r\n\r\n", refused(400))
case("control: NUL after the version", b"GET /a HTTP/1.1\0\r\nHost: a.test\r\n\r\n", refused(400))
case("control: NUL before the request", b"\0" + get(), refused(400))
case("control: BEL in a value", get(b"X-A: b\x07c"), refused(400))
case("control: vertical tab in a value", get(b"X-A: b\x0bc"), refused(400))
case("control: form feed in a value", get(b"X-A: b\x0cc"), refused(400))
case("control: DEL in a value", get(b"X-A: b\x7fc"), refused(400))
case("control: a tab in a value stays", get(b"X-A: b\tc"), passed(b"GET /a", b"x-a: b\tc"))
case("control: high bytes in a value stay", get(b"X-A: \xc3\xa4\xff\x80"), passed(b"GET /a", b"x-a: \xc3\xa4\xff\x80"))

# --- names and folding -----------------------------------------------------------------------------

case("name: folded by a space", get(b"X-A: b", b" c"), refused(400))
case("name: folded by a tab", get(b"X-A: b", b"\tc"), refused(400))
case("name: folded, with a length in the fold", get(b"X-A: b", b" Content-Length: 43"), refused(400))
case("name: Transfer-Encoding, folded", post(b"Transfer-Encoding:", b" chunked", body=b"0\r\n\r\n"), refused(400))
case("name: the first field is folded", b"GET /a HTTP/1.1\r\n Host: a.test\r\n\r\n", refused(400))
case("name: a folded line of nothing", get(b"X-A: b", b" "), refused(400))
case("name: a space before the colon", get(b"X-A : b"), refused(400))
case("name: a tab before the colon", get(b"X-A\t: b"), refused(400))
case("name: Content-Length with a space before the colon", post(b"Content-Length : 3", body=b"abc"), refused(400))
case("name: Transfer-Encoding with a space before the colon",
     post(b"Transfer-Encoding : chunked", body=b"0\r\n\r\n"), refused(400))
case("name: Transfer-Encoding with a vertical tab before the colon",
     post(b"Transfer-Encoding\x0b: chunked", body=b"0\r\n\r\n"), refused(400))
case("name: a space inside", get(b"X A: b"), refused(400))
case("name: nothing before the colon", get(b": b"), refused(400))
case("name: no colon", get(b"X-A"), refused(400))
case("name: no colon, and a request line", get(b"GET /smuggled HTTP/1.1"), refused(400))
case("name: in brackets", get(b"X[A]: b"), refused(400))
case("name: with a high byte", get(b"X-\xe4: b"), refused(400))
case("name: with a quote", get(b'X-"A": b'), refused(400))
case("name: odd, and still a token", get(b"!#$%&'*+.^`|~: b"), passed(b"GET /a", b"!#$%&'*+.^`|~: b"))
case("name: an underscore", get(b"X_A: b"), passed(b"GET /a", b"x_a: b"))
case("name: Content_Length is no length", post(b"Content_Length: 3"), passed(b"POST /a"))
case("name: Transfer_Encoding is no coding", post(b"Transfer_Encoding: chunked"), passed(b"POST /a"))
case("name: X_Forwarded_For does not pass for X-Forwarded-For", get(b"X_Forwarded_For: 9.9.9.9"), PLAIN)
case("name: X_Request_Id does not pass for X-Request-Id", get(b"X_Request_Id: forged"), PLAIN)
case("name: X-Request-Id passes", get(b"X-Request-Id: a-1"), passed(b"GET /a", b"x-request-id: a-1"))
case("name: X-Request-Id twice is none", get(b"X-Request-Id: a-1\r\nX-Request-Id: a-2"), PLAIN)
case("name: X-Request-Id that is no name", get(b"X-Request-Id: a\tb"), PLAIN)
case("name: traceparent that is none", get(b"traceparent: 00-1-2-3"), PLAIN)
case("name: traceparent passes", get(b"traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00"),
     passed(b"GET /a", b"traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00"))
case("name: a dot for a dash", get(b"X.Forwarded.For: 9.9.9.9"), either(passed(b"GET /a", b"x.forwarded.for: 9.9.9.9")))

# --- chunks ----------------------------------------------------------------------------------------

case("chunk: capital digits", chunks(b"A\r\n0123456789\r\n0\r\n\r\n"), passed(b"POST /a", body=b"0123456789", chunked=True))
case("chunk: leading zeros", chunks(b"0003\r\nabc\r\n000\r\n\r\n"), passed(b"POST /a", body=b"abc", chunked=True))
for label, size in {
    "a plus": b"+3", "a minus": b"-3", "0x": b"0x3", "an underscore": b"0_3", "a leading space": b" 3",
    "a leading tab": b"\t3", "nothing": b"", "only a semicolon": b";a", "a word": b"xyz", "a digit and a word": b"3xyz",
    "a point": b"3.0", "a comma": b"3,3", "a space and a digit": b"3 3", "2^64": b"10000000000000003",
    "2^64 and more": b"ffffffffffffffffff", "quotes": b'"3"', "NUL": b"3\0", "a vertical tab": b"3\x0b",
}.items():
    case(f"chunk: a size with {label}", chunks(size + b"\r\nabc\r\n0\r\n\r\n"), broken(400))
case("chunk: a size with white space behind it", chunks(b"3 \t\r\nabc\r\n0\r\n\r\n"),
     either(passed(b"POST /a", body=b"abc", chunked=True)))
case("chunk: LF behind the size", chunks(b"3\nabc\r\n0\r\n\r\n"), broken(400))
case("chunk: CR behind the size", chunks(b"3\rabc\r\n0\r\n\r\n"), broken(400))
case("chunk: CR CR LF behind the size", chunks(b"3\r\r\nabc\r\n0\r\n\r\n"), broken(400))
case("chunk: no line end behind the data", chunks(b"3\r\nabc0\r\n\r\n"), broken(400))
case("chunk: LF behind the data", chunks(b"3\r\nabc\n0\r\n\r\n"), broken(400))
case("chunk: CR behind the data", chunks(b"3\r\nabc\r0\r\n\r\n"), broken(400))
case("chunk: more data than the size says", chunks(b"3\r\nabcd\r\n0\r\n\r\n"), broken(400))
case("chunk: two bytes of anything behind the data", chunks(b"3\r\nabcXX0\r\n\r\n"), broken(400))
case("chunk: LF behind the last one", chunks(b"3\r\nabc\r\n0\n\r\n"), broken(400))
case("chunk: LF for the last line", chunks(b"3\r\nabc\r\n0\r\n\n") + SMUGGLED, broken(400))
case("chunk: CR for the last line", chunks(b"3\r\nabc\r\n0\r\n\rX"), broken(400))
case("chunk: the last one is missing", chunks(b"3\r\nabc\r\n"), broken(400, None), half_closes=True)
case("chunk: cut inside a size", chunks(b"3\r\nabc\r\n1"), broken(400, None), half_closes=True)
case("chunk: cut inside the data", chunks(b"5\r\nabc"), broken(400, None), half_closes=True)
case("chunk: in many pieces", [chunks(b"")] + [bytes([byte]) for byte in b"3\r\nabc\r\n0\r\n\r\n"],
     passed(b"POST /a", body=b"abc", chunked=True))
case("chunk: a request behind the last one", chunks(b"0\r\n\r\n") + SMUGGLED,
     [passed(b"POST /a", chunked=True), passed(b"GET /smuggled")])

EXTENDED = passed(b"POST /a", body=b"abc", chunked=True)
case("extension: one", chunks(b"3;a=b\r\nabc\r\n0\r\n\r\n"), EXTENDED)
case("extension: in quotes", chunks(b'3;a="b;c"\r\nabc\r\n0\r\n\r\n'), EXTENDED)
case("extension: with white space", chunks(b"3 ; a = b\r\nabc\r\n0\r\n\r\n"), either(EXTENDED))
case("extension: of the last chunk", chunks(b"3\r\nabc\r\n0;a=b\r\n\r\n"), EXTENDED)
case("extension: LF in it", chunks(b"3;a\nb\r\nabc\r\n0\r\n\r\n"), broken(400))
case("extension: LF ends it", chunks(b"3;a\nabc\r\n0\r\n\r\n"), broken(400))
case("extension: CR in it", chunks(b"3;a\rb\r\nabc\r\n0\r\n\r\n"), broken(400))
case("extension: a quoted line end", chunks(b'3;a="\r\nabc\r\n0\r\n\r\n'), either(EXTENDED))
case("extension: LF hides a chunk", chunks(b"2;\nxx\r\n2b\r\n0\r\n\r\n" + SMUGGLED), broken(400))
case("extension: NUL in it", chunks(b"3;a=\0\r\nabc\r\n0\r\n\r\n"), broken(400))
case("extension: a control character in it", chunks(b"3;a=\x07\r\nabc\r\n0\r\n\r\n"), broken(400))
case("extension: 20,000 bytes", chunks(b"3;" + b"a" * 20_000 + b"\r\nabc\r\n0\r\n\r\n"), broken(400))
case("extension: 20,000 bytes in small pieces", chunks(b"1;aaaaaaaaaaaaaaaaaaaa\r\nx\r\n" * 1000 + b"0\r\n\r\n"), broken(400))

# --- trailers --------------------------------------------------------------------------------------

def trailer(*lines, announced=b""):
    fields = [b"Trailer: " + announced] if announced else []
    return chunks(b"3\r\nabc\r\n0\r\n" + b"".join(line + b"\r\n" for line in lines) + b"\r\n", *fields)


case("trailer: one that was announced", trailer(b"X-Sum: 1", announced=b"X-Sum"),
     passed(b"POST /a", b"trailer: X-Sum", body=b"abc", chunked=True, trailers=(b"x-sum: 1",)))
case("trailer: one that was not announced", trailer(b"X-Sum: 1"), EXTENDED)
for name in (b"Content-Length", b"Transfer-Encoding", b"Host", b"Authorization", b"X-Forwarded-For", b"Trailer",
             b"Connection", b"Cookie", b"Content-Type", b"TE", b"X_Forwarded_For", b"Expect", b"Upgrade"):
    case(f"trailer: {name.decode()} is none", trailer(name + b": 9", announced=name),
         passed(b"POST /a", b"trailer: " + name, body=b"abc", chunked=True))
case("trailer: folded", trailer(b"X-Sum: 1", b" 2", announced=b"X-Sum"), broken(400))
case("trailer: a space before the colon", trailer(b"X-Sum : 1", announced=b"X-Sum"), broken(400))
case("trailer: no colon", trailer(b"GET /smuggled HTTP/1.1"), broken(400))
case("trailer: NUL in it", trailer(b"X-Sum: \0", announced=b"X-Sum"), broken(400))
case("trailer: CR in it", trailer(b"X-Sum: 1\rX-B: 2", announced=b"X-Sum"), broken(400))
case("trailer: LF ends it", trailer(b"X-Sum: 1\nX-B: 2", announced=b"X-Sum"),
     either(passed(b"POST /a", b"trailer: X-Sum", body=b"abc", chunked=True, trailers=(b"x-sum: 1",))))
case("trailer: LF, LF, and a request in what follows", trailer(b"X-Sum: 1\n\nGET /smuggled HTTP/1.1", b"Host: a.test"),
     broken(400))
case("trailer: 200 of them", trailer(*[b"X-%d: 1" % index for index in range(200)]), broken(400, 431))
case("trailer: a large one", trailer(b"X-Sum: " + b"a" * TOO_LONG, announced=b"X-Sum"), broken(400, 431))

# --- Transfer-Encoding -----------------------------------------------------------------------------

END = b"0\r\n\r\n"
for label, value in {
    "xchunked": b"xchunked", "chunked and a word": b"chunked x", "a trailing comma": b"chunked,",
    "a leading comma": b",chunked", "in quotes": b'"chunked"', "a vertical tab before it": b"\x0bchunked",
    "a vertical tab behind it": b"chunked\x0b", "a NUL behind it": b"chunked\0", "a parameter": b"chunked;q=1",
    "identity": b"identity", "identity, chunked": b"identity, chunked", "gzip, chunked": b"gzip, chunked",
    "chunked, identity": b"chunked, identity", "chunked, gzip": b"chunked, gzip", "chunked twice": b"chunked, chunked",
    "gzip": b"gzip", "nothing": b"", "cow": b"cow", "a high byte": b"\xffchunked", "a form feed": b"\x0cchunked",
    "chunk": b"chunk", "a line end in it": b"\r\n chunked", "a Kelvin sign": b"chun\xe2\x84\xaaed",
}.items():
    case(f"coding: {label}", post(b"Transfer-Encoding: " + value, body=END), refused(400, 501))
    if label in ("xchunked", "identity", "gzip", "nothing", "cow", "chunked, identity", "in quotes"):
        case(f"coding: {label}, and a length", post(b"Transfer-Encoding: " + value, b"Content-Length: 5", body=END),
             refused(400, 501))
CODED = passed(b"POST /a", chunked=True)
case("coding: capital letters", post(b"Transfer-Encoding: CHUNKED", body=END), CODED)
case("coding: a tab before it", post(b"Transfer-Encoding:\tchunked", body=END), CODED)
case("coding: a tab behind it", post(b"Transfer-Encoding: chunked\t", body=END), CODED)
case("coding: no space before it", post(b"Transfer-Encoding:chunked", body=END), CODED)
case("coding: a name in capital letters", post(b"TRANSFER-ENCODING: chunked", body=END), CODED)
case("coding: two fields", post(b"Transfer-Encoding: chunked", b"Transfer-Encoding: chunked", body=END), refused(400, 501))
case("coding: two fields, the second unknown", post(b"Transfer-Encoding: chunked", b"Transfer-Encoding: cow", body=END),
     refused(400, 501))
case("coding: two fields, the first unknown", post(b"Transfer-Encoding: cow", b"Transfer-Encoding: chunked", body=END),
     refused(400, 501))
case("coding: two fields, the second empty", post(b"Transfer-Encoding: chunked", b"Transfer-Encoding:", body=END),
     refused(400, 501))
case("coding: in HTTP/1.0", b"POST /a HTTP/1.0\r\nHost: a.test\r\nTransfer-Encoding: chunked\r\n\r\n" + END, refused(400, 501))
case("coding: in HTTP/1.0, kept alive",
     b"POST /a HTTP/1.0\r\nHost: a.test\r\nConnection: keep-alive\r\nTransfer-Encoding: chunked\r\n\r\n" + END, refused(400, 501))
case("coding: a length before it", post(b"Content-Length: 6", b"Transfer-Encoding: chunked", body=END + b"X"),
     either(passed(b"POST /a", chunked=True, ends=True)))
case("coding: a length behind it", post(b"Transfer-Encoding: chunked", b"Content-Length: 6", body=END + b"X"),
     either(passed(b"POST /a", chunked=True, ends=True)))
case("coding: CL.TE, a request behind the last chunk",
     post(b"Content-Length: 46", b"Transfer-Encoding: chunked", body=END + SMUGGLED),
     either(passed(b"POST /a", chunked=True, ends=True)))
case("coding: TE.CL, a request inside a chunk",
     post(b"Transfer-Encoding: chunked", b"Content-Length: 4", body=b"%x\r\n%b\r\n0\r\n\r\n" % (len(SMUGGLED), SMUGGLED)),
     either(passed(b"POST /a", body=SMUGGLED, chunked=True, ends=True)))
case("coding: a bad length behind it", post(b"Transfer-Encoding: chunked", b"Content-Length: x", body=END),
     either(passed(b"POST /a", chunked=True, ends=True)))
case("coding: named by Connection", post(b"Connection: Transfer-Encoding", b"Transfer-Encoding: chunked", body=END),
     either(CODED))
case("coding: of a GET", b"GET /a HTTP/1.1\r\nHost: a.test\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
     passed(b"GET /a", body=b"abc", chunked=True))

# --- Content-Length --------------------------------------------------------------------------------

ABC = passed(b"POST /a", body=b"abc", length=3)
for label, value in {
    "a plus": b"+3", "a minus": b"-3", "hexadecimal": b"0x3", "white space inside": b"3 3", "a list": b"3, 3",
    "a list that differs": b"3, 4", "a point": b"3.0", "a word": b"abc", "nothing": b"", "a digit and a word": b"3x",
    "an underscore": b"0_3", "a trailing comma": b"3,", "a vertical tab": b"\x0b3", "quotes": b'"3"',
    "2^64 + 3": b"18446744073709551619", "2^64": b"18446744073709551616", "100 digits": b"9" * 100,
    "digits of another script": "٣".encode(), "an exponent": b"3e0", "a semicolon": b"3;", "a NUL": b"3\0",
}.items():
    case(f"length: {label}", post(b"Content-Length: " + value, body=b"abc"), refused(400, 413))
case("length: leading zeros", post(b"Content-Length: 0003", body=b"abc"), either(ABC))
case("length: white space around it", post(b"Content-Length: \t3 \t", body=b"abc"), ABC)
case("length: twice the same", post(b"Content-Length: 3", b"Content-Length: 3", body=b"abc"), either(ABC))
case("length: twice the same, spelt differently", post(b"Content-Length: 3", b"Content-Length: 03", body=b"abc"), either(ABC))
case("length: two that differ", post(b"Content-Length: 3", b"Content-Length: 0", body=b"abc"), refused(400))
case("length: two that differ, the other way round", post(b"Content-Length: 0", b"Content-Length: 3", body=b"abc"), refused(400))
case("length: two, one of them empty", post(b"Content-Length: 3", b"Content-Length:", body=b"abc"), refused(400))
case("length: too large for the gateway", post(b"Content-Length: 99999999999", body=b"abc"), refused(413))
case("length: named by Connection", post(b"Connection: Content-Length", b"Content-Length: 3", body=b"abc"), either(ABC))
case("length: the body is longer, and what follows is no request", post(b"Content-Length: 3", body=b"abcdef\r\n\r\n"),
     [ABC, refused(400)])
case("length: the body is shorter, and the caller says no more", post(b"Content-Length: 5", body=b"abc"),
     broken(400, None), half_closes=True)
case("length: the body comes later", [post(b"Content-Length: 3"), b"a", b"bc"], ABC)
case("length: a GET with a body", b"GET /a HTTP/1.1\r\nHost: a.test\r\nContent-Length: 3\r\n\r\nabc",
     passed(b"GET /a", body=b"abc", length=3))
case("length: a GET whose body is a request",
     b"GET /a HTTP/1.1\r\nHost: a.test\r\nContent-Length: %d\r\n\r\n" % len(SMUGGLED) + SMUGGLED,
     passed(b"GET /a", body=SMUGGLED, length=len(SMUGGLED)))
case("length: a DELETE with a body", b"DELETE /a HTTP/1.1\r\nHost: a.test\r\nContent-Length: 3\r\n\r\nabc",
     passed(b"DELETE /a", body=b"abc", length=3))
case("length: a HEAD with a body", b"HEAD /a HTTP/1.1\r\nHost: a.test\r\nContent-Length: 3\r\n\r\nabc",
     passed(b"HEAD /a", body=b"abc", length=3))

# --- Host ------------------------------------------------------------------------------------------

def host(*lines, target=b"/a"):
    return b"GET " + target + b" HTTP/1.1\r\n" + b"".join(line + b"\r\n" for line in lines) + b"\r\n"


case("host: none", host(), refused(400))
case("host: two that differ", host(b"Host: a.test", b"Host: b.test"), refused(400))
case("host: two that are the same", host(b"Host: a.test", b"Host: a.test"), refused(400))
for label, value in {
    "empty": b"", "with a path": b"a.test/x", "with a user": b"u@a.test", "with a user and a password": b"u:p@a.test",
    "with a space": b"a.test b.test", "with a tab": b"a.test\tb.test", "a bad port": b"a.test:x",
    "a port beyond 65535": b"a.test:99999", "two ports": b"a.test:80:80", "only a port": b":80", "a query": b"a.test?x",
    "a fragment": b"a.test#x", "a backslash": b"a.test\\x", "a high byte": b"a\xe4.test", "a control character": b"a\x01.test",
    "NUL": b"a\0.test", "an open bracket": b"[::1", "no address in brackets": b"[zz]", "brackets and a tail": b"[::1]x",
    "an IPv6 address without brackets": b"::1", "an IPv6 address with a zone": b"[fe80::1%25eth0]", "a URL": b"http://a.test/",
    "a quote": b'a"b.test', "an angle bracket": b"<a>", "longer than any name": b"a" * 300, "a minus as the port": b"a.test:-1",
    "a plus in the port": b"a.test:+80",
}.items():
    case(f"host: {label}", host(b"Host: " + value), refused(400))
case("host: a list with a space", host(b"Host: a.test, b.test"), refused(400))
case("host: a list", host(b"Host: a.test,b.test"), either(passed(b"GET /a", host=b"a.test,b.test")))
case("host: a percent sign", host(b"Host: a%2etest"), either(passed(b"GET /a", host=b"a%2etest")))
case("host: with a port", host(b"Host: a.test:8080"), passed(b"GET /a", host=b"a.test:8080"))
case("host: with an empty port", host(b"Host: a.test:"), either(passed(b"GET /a", host=b"a.test:")))
case("host: an IPv6 address", host(b"Host: [2001:db8::1]:80"), passed(b"GET /a", host=b"[2001:db8::1]:80"))
case("host: capital letters", host(b"Host: A.TEST"), passed(b"GET /a", host=b"A.TEST"))
case("host: the target names another, and wins", host(b"Host: a.test", target=b"http://b.test/a"),
     either(passed(b"GET /a", host=b"b.test")))
case("host: the target names one, the field is missing", host(target=b"http://b.test/a"), refused(400))
case("host: the target names one, the field is empty", host(b"Host:", target=b"http://b.test/a"),
     either(passed(b"GET /a", host=b"b.test")))
case("host: two, and the target names one", host(b"Host: a.test", b"Host: b.test", target=b"http://b.test/a"), refused(400))
case("host: none in HTTP/1.0", b"GET /a HTTP/1.0\r\n\r\n", refused(400))
case("host: named by Connection", get(b"Connection: Host"), either(PLAIN))
case("host: X-Forwarded-Host is the gateway's to say", get(b"X-Forwarded-Host: evil.test"), PLAIN)
case("host: X-Host does not count", get(b"X-Host: b.test"), passed(b"GET /a", b"x-host: b.test"))

# --- targets ---------------------------------------------------------------------------------------

def target(text):
    return b"GET " + text + b" HTTP/1.1\r\nHost: a.test\r\n\r\n"


for label, text in {
    "a control character": b"/a\x01", "DEL": b"/a\x7f", "a tab": b"/a\tb", "raw UTF-8": b"/\xc3\xa4", "a high byte": b"/\xff",
    "a backslash": b"/a\\b", "a backslash and dots": b"/a\\..\\b", "%00": b"/a%00", "% and nothing": b"/a%",
    "% and one digit": b"/a%4", "% and no digits": b"/a%zz", "overlong UTF-8 dots after a slash": b"/a/..%2f..%2fb",
    "dots behind an escaped slash": b"/a%2f..%2fb", "dots and a semicolon": b"/a/..;/b", "dots and an escaped backslash": b"/a/..%5cb",
    "another scheme": b"ftp://a.test/a", "no scheme at all": b"a", "a relative path": b"../a", "a file": b"file:///etc/passwd",
    "a port and no host": b"http://:80/a", "a user in the target": b"http://u@a.test/a", "no host in the target": b"http:///a",
    "an authority": b"a.test:80", "a query alone": b"?a", "a high byte in the query": b"/a?\xff", "NUL in the query": b"/a?\0",
    "javascript": b"javascript:alert(1)",
}.items():
    case(f"target: {label}", target(text), refused(400))
for label, text, line in [
    ("dot segments", b"/x/../a", b"/a"), ("escaped dot segments", b"/x/%2e%2E/a", b"/a"), ("above the root", b"/../../a", b"/a"),
    ("double slashes", b"//a", b"/a"), ("many slashes", b"///x////b", b"/x/b"), ("escaped letters", b"/%61", b"/a"),
    ("an escaped slash stays", b"/a%2fb", b"/a%2Fb"), ("an escaped line end stays escaped", b"/a%0d%0aX-B:%20c", b"/a%0D%0AX-B:%20c"),
    ("an escaped space stays", b"/a%20b", b"/a%20b"), ("an escaped percent stays", b"/a%2541", b"/a%2541"),
    ("dots in the query stay", b"/a?../b//c", b"/a?../b//c"), ("escapes in the query stay", b"/a?%61%0d%0a", b"/a?%61%0d%0a"),
    ("an empty query", b"/a?", b"/a?"), ("a trailing dot segment", b"/a/.", b"/a/"), ("three dots", b"/a/...", b"/a/..."),
    ("an absolute target", b"http://a.test/a?b", b"/a?b"), ("an absolute target without a path", b"http://a.test", b"/"),
    ("an absolute target with a query and no path", b"http://a.test?b", b"/?b"), ("another's scheme", b"https://a.test/a", b"/a"),
    ("a fragment is for the caller alone", b"/a#b", b"/a"), ("a fragment behind a query", b"/a?b#c", b"/a?b"),
    ("a scheme in capital letters", b"HTTP://a.test/a", b"/a"), ("a colon", b"/a:b@c", b"/a:b@c"),
]:
    case(f"target: {label}", target(text), passed(b"GET " + line))
case("target: an asterisk for GET", target(b"*"), refused(400))
case("target: an asterisk for OPTIONS", b"OPTIONS * HTTP/1.1\r\nHost: a.test\r\n\r\n", refused(400, 404, 405, 501))
case("target: empty", b"GET  HTTP/1.1\r\nHost: a.test\r\n\r\n", refused(400))
case("target: none", b"GET HTTP/1.1\r\nHost: a.test\r\n\r\n", refused(400))
case("target: two", b"GET /a /b HTTP/1.1\r\nHost: a.test\r\n\r\n", refused(400))
case("target: a space in it", b"GET /a b HTTP/1.1\r\nHost: a.test\r\n\r\n", refused(400))
case("target: a whole request in it", b"GET /a HTTP/1.1\x20HTTP/1.1\r\nHost: a.test\r\n\r\n", refused(400))
case("target: two spaces before it", b"GET  /a HTTP/1.1\r\nHost: a.test\r\n\r\n", refused(400))
case("target: two spaces behind it", b"GET /a  HTTP/1.1\r\nHost: a.test\r\n\r\n", refused(400))
case("target: a tab before it", b"GET\t/a HTTP/1.1\r\nHost: a.test\r\n\r\n", refused(400))
case("target: a vertical tab behind it", b"GET /a\x0bHTTP/1.1\r\nHost: a.test\r\n\r\n", refused(400))
case("target: 8,000 bytes", target(b"/" + b"a" * 8000), passed(b"GET /" + b"a" * 8000))
case("target: 70,000 bytes", target(b"/" + b"a" * TOO_LONG), refused(414, 431))

# --- methods ---------------------------------------------------------------------------------------

def method(text, where=b"/a"):
    return text + b" " + where + b" HTTP/1.1\r\nHost: a.test\r\n\r\n"


case("method: CONNECT", method(b"CONNECT", b"a.test:443"), refused(400, 405, 501))
case("method: CONNECT with a path", method(b"CONNECT"), refused(400, 405, 501))
case("method: CONNECT with a request behind it", method(b"CONNECT", b"a.test:443") + SMUGGLED, refused(400, 405, 501))
case("method: TRACE", method(b"TRACE"), refused(405, 501))
case("method: OPTIONS", method(b"OPTIONS"), passed(b"OPTIONS /a"))
case("method: small letters are another method", method(b"get"), passed(b"get /a"))
case("method: unknown", method(b"FROB"), passed(b"FROB /a"))
case("method: PRI", method(b"PRI"), either(passed(b"PRI /a")))
case("method: with a colon", method(b"GET:"), refused(400))
case("method: in quotes", method(b'"GET"'), refused(400))
case("method: with a high byte", method(b"G\xcbT"), refused(400))
case("method: none", b" /a HTTP/1.1\r\nHost: a.test\r\n\r\n", refused(400))
case("method: 70,000 letters", method(b"A" * TOO_LONG), refused(400, 414, 431, 501))

# --- versions --------------------------------------------------------------------------------------

def version(text, behind=b""):
    return b"GET /a " + text + b"\r\nHost: a.test\r\n" + behind + b"\r\n"


case("version: HTTP/0.9, which says none", b"GET /a\r\n\r\n", refused(400, 505))
case("version: 1.0", version(b"HTTP/1.0"), passed(b"GET /a", via=b"1.0", ends=True))
case("version: 1.0, kept alive", version(b"HTTP/1.0", b"Connection: keep-alive\r\n"), passed(b"GET /a", via=b"1.0"))
for text in (b"HTTP/0.9", b"HTTP/1.2", b"HTTP/2.0", b"HTTP/3", b"HTTP/1.", b"HTTP/1", b"HTTP/11", b"HTTP/1.10", b"HTTP/01.1",
             b"http/1.1", b"HTTP/1,1", b"HTTP/-1.1", b"HTTPS/1.1", b"HTTP /1.1", b"HTTP/1.1 ", b"HTTP/1.1\t", b"XTTP/1.1", b"HTTP"):
    case(f"version: {text.decode()!r}", version(text), refused(400, 505))

# --- Connection, and what belongs to it ------------------------------------------------------------

case("connection: close", get(b"Connection: close"), passed(b"GET /a", ends=True))
case("connection: close among others", get(b"Connection: x, CLOSE"), passed(b"GET /a", ends=True))
case("connection: close, then keep-alive", get(b"Connection: close", b"Connection: keep-alive"), passed(b"GET /a", ends=True))
case("connection: names a field", get(b"Connection: X-Hop", b"X-Hop: 1", b"X-A: b"), passed(b"GET /a", b"x-a: b"))
case("connection: names two fields", get(b"Connection: x-hop , X-HIP", b"X-Hop: 1", b"X-Hip: 1"), PLAIN)
case("connection: two fields name some", get(b"Connection: x-hop", b"Connection: x-hip", b"X-Hop: 1", b"X-Hip: 1"), PLAIN)
case("connection: cannot take off Authorization", get(b"Connection: Authorization", b"Authorization: Basic eA=="),
     passed(b"GET /a", b"authorization: Basic eA=="))
case("connection: cannot take off X-Forwarded-For", get(b"Connection: X-Forwarded-For"), PLAIN)
case("connection: cannot take off X-Request-Id", get(b"Connection: X-Request-Id\r\nX-Request-Id: a-1"), passed(b"GET /a", b"x-request-id: a-1"))
case("connection: cannot take off Via", get(b"Connection: Via, X-Forwarded-Proto, X-Forwarded-Host"), PLAIN)
case("connection: cannot take off Cookie", get(b"Connection: Cookie", b"Cookie: a=b"), passed(b"GET /a", b"cookie: a=b"))
case("connection: cannot take off Content-Type", post(b"Connection: Content-Type", b"Content-Type: text/plain"),
     passed(b"POST /a", b"content-type: text/plain"))
case("connection: garbled", get(b"Connection: ,,;x y,\xff"), PLAIN)
case("connection: X-Forwarded-For of a stranger is not believed", get(b"X-Forwarded-For: 9.9.9.9"), PLAIN)
case("connection: Forwarded of a stranger is not passed on", get(b"Forwarded: for=9.9.9.9"), PLAIN)
case("connection: X-Forwarded-Proto of a stranger is not passed on", get(b"X-Forwarded-Proto: https"), PLAIN)
for field in (b"Keep-Alive: timeout=5", b"Proxy-Connection: keep-alive", b"Proxy-Authorization: Basic eA==",
              b"Proxy-Authenticate: Basic", b"HTTP2-Settings: AAMAAABkAAQAAP__", b"Upgrade: websocket", b"TE: gzip"):
    case(f"connection: {field.split(b':')[0].decode()} goes no further", get(field), PLAIN)
case("connection: TE says trailers", get(b"TE: trailers", b"Connection: TE"), passed(b"GET /a", b"te: trailers", b"connection: te"))
case("connection: TE says trailers among others", get(b"TE: gzip, trailers;q=1, trailers"),
     passed(b"GET /a", b"te: trailers", b"connection: te"))
case("connection: Trailer without chunks", get(b"Trailer: X-Sum"), either(passed(b"GET /a", b"trailer: X-Sum"), ))

# --- Upgrade and Expect ----------------------------------------------------------------------------

case("upgrade: h2c", get(b"Connection: Upgrade, HTTP2-Settings", b"Upgrade: h2c", b"HTTP2-Settings: AAMAAABkAAQAAP__"), PLAIN)
case("upgrade: h2c, with a request behind it",
     get(b"Connection: Upgrade, HTTP2-Settings", b"Upgrade: h2c", b"HTTP2-Settings: AAMAAABkAAQAAP__") + SMUGGLED,
     [PLAIN, passed(b"GET /smuggled")])
case("upgrade: HTTP/2.0", get(b"Connection: Upgrade", b"Upgrade: HTTP/2.0"), PLAIN)
case("upgrade: TLS", get(b"Connection: Upgrade", b"Upgrade: TLS/1.0"), PLAIN)
case("upgrade: two protocols", get(b"Connection: Upgrade", b"Upgrade: websocket, h2c"), PLAIN)
case("upgrade: two fields", get(b"Connection: Upgrade", b"Upgrade: websocket", b"Upgrade: h2c"), PLAIN)
case("upgrade: in a request with a body", post(b"Connection: Upgrade", b"Upgrade: websocket", b"Content-Length: 3", body=b"abc"), ABC)
case("upgrade: in HTTP/1.0", b"GET /a HTTP/1.0\r\nHost: a.test\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n",
     passed(b"GET /a", via=b"1.0", ends=True))
case("upgrade: one that the upstream does not grant", get(b"Connection: Upgrade", b"Upgrade: frob/1"),
     passed(b"GET /a", b"connection: upgrade", b"upgrade: frob/1"))
case("expect: 100-continue, and the caller waits", [post(b"Expect: 100-continue", b"Content-Length: 3"), b"abc"],
     passed(b"POST /a", body=b"abc", length=3, interim=(100,)))
case("expect: 100-continue in capital letters", [post(b"Expect: 100-CONTINUE", b"Content-Length: 3"), b"abc"],
     passed(b"POST /a", body=b"abc", length=3, interim=(100,)))
case("expect: 100-continue, and a request that is refused", b"POST /%00 HTTP/1.1\r\nHost: a.test\r\nExpect: 100-continue\r\n"
     b"Content-Length: 43\r\n\r\n" + SMUGGLED, refused(400))
case("expect: 100-continue without a body", get(b"Expect: 100-continue"), PLAIN)
case("expect: 100-continue in HTTP/1.0", b"POST /a HTTP/1.0\r\nHost: a.test\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\nabc",
     passed(b"POST /a", body=b"abc", length=3, via=b"1.0", ends=True))
case("expect: something else", get(b"Expect: frob"), [Either((PLAIN,))])
case("expect: something else, with a body", post(b"Expect: 100-continueX", b"Content-Length: 3", body=b"abc"), either(ABC))

# --- pipelines -------------------------------------------------------------------------------------

case("pipeline: three", get() + b"GET /b HTTP/1.1\r\nHost: b.test\r\n\r\n" + b"GET /c HTTP/1.1\r\nHost: c.test\r\n\r\n",
     [PLAIN, passed(b"GET /b", host=b"b.test"), passed(b"GET /c", host=b"c.test")])
# Where chunks begin in a pipeline is not known for certain, so nothing is taken from behind them.
case("pipeline: bodies of both kinds", post(b"Content-Length: 3", body=b"abc") + chunks(b"2\r\nde\r\n0\r\n\r\n") + SMUGGLED,
     [ABC, passed(b"POST /a", body=b"de", chunked=True, ends=True)])
case("pipeline: chunks first", chunks(b"2\r\nde\r\n0\r\n\r\n") + post(b"Content-Length: 3", body=b"abc") + get(),
     [passed(b"POST /a", body=b"de", chunked=True), ABC, PLAIN])
case("pipeline: the second is bad", get() + b"GET /b HTTP/1.1\r\n\r\n" + SMUGGLED, [PLAIN, refused(400)])
case("pipeline: the second cannot be read", get() + b"\x16\x03\x01\x02\x00\x01" + SMUGGLED, [PLAIN, refused(400)])
case("pipeline: behind a close", get(b"Connection: close") + SMUGGLED, passed(b"GET /a", ends=True))
case("pipeline: behind a refusal", b"GET /%00 HTTP/1.1\r\nHost: a.test\r\n\r\n" + SMUGGLED, refused(400))
case("pipeline: behind a refused body",
     b"POST /%00 HTTP/1.1\r\nHost: a.test\r\nContent-Length: 3\r\n\r\nabc" + SMUGGLED, refused(400))
case("pipeline: an empty line between two", post(b"Content-Length: 3", body=b"abc") + b"\r\n" + get(), [ABC, PLAIN])
case("pipeline: HTTP/1.0 first", b"GET /a HTTP/1.0\r\nHost: a.test\r\n\r\n" + SMUGGLED, passed(b"GET /a", via=b"1.0", ends=True))
case("pipeline: fifty", get() * 50, [PLAIN] * 50)

# --- too much --------------------------------------------------------------------------------------

case("much: 99 fields", get(*[b"X-%d: 1" % index for index in range(98)]),
     passed(b"GET /a", *[b"x-%d: 1" % index for index in range(98)]))
case("much: 101 fields", get(*[b"X-%d: 1" % index for index in range(100)]), refused(431))
case("much: 5,000 fields", get(*[b"X-%d: 1" % index for index in range(5000)]), refused(431))
case("much: a value of 70,000 bytes", get(b"X-A: " + b"a" * TOO_LONG), refused(431))
case("much: a name of 70,000 bytes", get(b"X" * TOO_LONG + b": a"), refused(400, 431))
case("much: a million bytes without a line end", b"GET /a HTTP/1.1\r\nX: " + b"a" * 1_000_000, refused(431))
case("much: a field of 30,000 bytes", get(b"X-A: " + b"a" * 30_000), passed(b"GET /a", b"x-a: " + b"a" * 30_000))
case("much: a body above the limit, in chunks", chunks(b"100000\r\n" + b"a" * (1 << 20) + b"\r\n") + (b"100000\r\n" + b"a" * (1 << 20) + b"\r\n") * 10,
     broken(413))

# --- other attempts --------------------------------------------------------------------------------

case("other: cookies are one field", get(b"Cookie: a=b", b"Cookie: c=d"), passed(b"GET /a", b"cookie: a=b; c=d"))
case("other: a value that looks like a field", get(b"X-A: Content-Length: 43"), passed(b"GET /a", b"x-a: Content-Length: 43"))
case("other: an escaped line end in a value stays a value", get(b"X-A: %0d%0aContent-Length:%2043"),
     passed(b"GET /a", b"x-a: %0d%0aContent-Length:%2043"))
case("other: a TLS handshake", b"\x16\x03\x01\x00\xa5\x01\x00\x00\xa1\x03\x03" + b"x" * 100, refused(400))
case("other: half a preface of HTTP/2", b"PRI * HTTP/2.0\r\n\r\nXX\r\n\r\n", refused(400, 505, None))
case("other: the preface of HTTP/2, as a GET", b"GET * HTTP/2.0\r\n\r\nSM\r\n\r\n", refused(400, 505))
case("other: half a head, and no more", b"GET /a HTTP/1.1\r\nHost: a.te", refused(400, 408, None), half_closes=True)
case("other: half a head, and silence", b"GET /a HTTP/1.1\r\nHost: a.te", refused(408))
case("other: nothing", b"", refused(408, None))
case("other: Max-Forwards stays", get(b"Max-Forwards: 0"), passed(b"GET /a", b"max-forwards: 0"))
case("other: Via is continued", get(b"Via: 1.0 x"), passed(b"GET /a", via=b"1.0 x, 1.1"))
case("other: two fields of one name stay two", get(b"X-A: 1", b"X-A: 2"), passed(b"GET /a", b"x-a: 1", b"x-a: 2"))
