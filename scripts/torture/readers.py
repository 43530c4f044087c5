"""Readers of HTTP/1.1: one that keeps to RFC 9112 to the letter, and several that do not.

Whatever a gateway sends to its upstream must be the same requests to all of them. Where they see
different ones, somebody could smuggle one.
"""

import re
from typing import NamedTuple

TOKEN = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
LINE = re.compile(rb"([!#$%&'*+\-.^_`|~0-9A-Za-z]+) ([\x21-\x7e]+) HTTP/1\.[01]")
FIELD = re.compile(rb"([!#$%&'*+\-.^_`|~0-9A-Za-z]+):[ \t]*([\t\x20-\x7e\x80-\xff]*?)[ \t]*")
CHUNK = re.compile(rb"([0-9A-Fa-f]{1,15})(?:[ \t]*;[\t\x20-\x7e\x80-\xff]*)?")


class Garbled(Exception):
    """It cannot be read."""


class Partial(Exception):
    """More must come."""


class Request(NamedTuple):
    """A request: the line, the fields as they were sent, the body without its coding, the trailers."""

    line: bytes
    fields: list
    body: bytes
    trailers: list
    chunked: bool

    def all(self, name):
        return values(self.fields, name)


def values(fields, name):
    return [value for key, value in fields if key.lower() == name]


def strict_request(raw):
    """The first request and where it ends, read as RFC 9112 has it."""
    head_end = raw.find(b"\r\n\r\n")
    if head_end < 0:
        if len(raw) > 1 << 20:
            raise Garbled("an endless head")
        raise Partial
    lines = raw[:head_end].split(b"\r\n")
    if not LINE.fullmatch(lines[0]):
        raise Garbled(f"request line {lines[0]!r}")
    fields = [strict_field(line) for line in lines[1:]]
    lengths, codings = values(fields, b"content-length"), values(fields, b"transfer-encoding")
    if len(values(fields, b"host")) != 1:
        raise Garbled("not one Host")
    if lengths and codings or len(lengths) > 1 or len(codings) > 1:
        raise Garbled("more than one framing")
    start = head_end + 4
    if codings:
        if codings[0].lower() != b"chunked":
            raise Garbled(f"coding {codings[0]!r}")
        body, trailers, end = strict_chunks(raw, start)
        return Request(lines[0], fields, body, trailers, True), end
    if lengths and not re.fullmatch(rb"\d{1,18}", lengths[0]):
        raise Garbled(f"length {lengths[0]!r}")
    end = start + int(lengths[0] if lengths else 0)
    if len(raw) < end:
        raise Partial
    return Request(lines[0], fields, bytes(raw[start:end]), [], False), end


def strict_field(line):
    match = FIELD.fullmatch(line)
    if not match:
        raise Garbled(f"field {line!r}")
    return match[1], match[2]


def strict_chunks(raw, at):
    """A body in chunks, its trailers, and where they end."""
    body = []
    while True:
        line, at = strict_line(raw, at)
        match = CHUNK.fullmatch(line)
        if not match:
            raise Garbled(f"chunk size {line!r}")
        size = int(match[1], 16)
        if size == 0:
            break
        if len(raw) < at + size + 2:
            raise Partial
        body.append(bytes(raw[at:at + size]))
        if raw[at + size:at + size + 2] != b"\r\n":
            raise Garbled("no line end behind a chunk")
        at += size + 2
    trailers = []
    while True:
        line, at = strict_line(raw, at)
        if not line:
            return b"".join(body), trailers, at
        trailers.append(strict_field(line))


def strict_line(raw, at):
    end = raw.find(b"\r\n", at)
    if end < 0:
        raise Partial
    return bytes(raw[at:end]), end + 2


class Reader(NamedTuple):
    """How a reader strays: where lines end, which framing counts, and how names are compared."""

    name: str
    line_end: bytes = rb"\r\n"
    length_first: bool = False
    last_length: bool = False
    sloppy_names: bool = False
    stop_at_nul: bool = False

    def requests(self, raw):
        """Every request it sees, as pairs of request line and body."""
        seen, at = [], 0
        while at < len(raw):
            try:
                request, at = self.request(raw, at)
            except (Partial, Garbled):
                seen.append(("rest", bytes(raw[at:])))
                break
            seen.append(request)
        return seen

    def line(self, raw, at):
        match = re.compile(self.line_end).search(raw, at)
        if not match:
            raise Partial
        return bytes(raw[at:match.start()]), match.end()

    def request(self, raw, at):
        first, at = self.line(raw, at)
        fields = []
        while True:
            line, at = self.line(raw, at)
            if not line:
                break
            if line[:1] in b" \t" and fields:
                fields[-1] = fields[-1][0], fields[-1][1] + b" " + line.strip()
                continue
            name, _, value = line.partition(b":")
            if self.stop_at_nul:
                name, value = name.split(b"\0")[0], value.split(b"\0")[0]
            if self.sloppy_names:
                name = re.sub(rb"[^0-9A-Za-z-]", b"", name.replace(b"_", b"-"))
            fields.append((name.lower(), value.strip()))
        lengths = values(fields, b"content-length")
        chunked = any(b"chunked" in value.lower() for value in values(fields, b"transfer-encoding"))
        if chunked and not (lengths and self.length_first):
            body = []
            while True:
                size, at = self.line(raw, at)
                match = re.match(rb"\s*([0-9A-Fa-f]+)", size)
                if not match:
                    raise Garbled
                size = int(match[1], 16)
                if not size:
                    break
                body.append(bytes(raw[at:at + size]))
                _, at = self.line(raw, at + size)
            while self.line(raw, at)[0]:
                _, at = self.line(raw, at)
            _, at = self.line(raw, at)
            return (first, b"".join(body)), at
        match = re.match(rb"\d+", lengths[-1 if self.last_length else 0]) if lengths else None
        size = int(match[0]) if match else 0
        if at + size > len(raw):
            raise Partial
        return (first, bytes(raw[at:at + size])), at + size


LENIENT = [
    Reader("one that takes LF for a line end", line_end=rb"\r?\n"),
    Reader("one that takes CR for a line end", line_end=rb"\r\n?|\n"),
    Reader("one that prefers the length", length_first=True),
    Reader("one that takes the last length", last_length=True),
    Reader("one that repairs names", sloppy_names=True),
    Reader("one that stops at NUL", stop_at_nul=True),
    Reader("one that does all of that", rb"\r\n?|\n", False, True, True, True),
]


def disagreement(raw):
    """How what was sent over a connection could be read differently, or None."""
    wanted, at = [], 0
    while at < len(raw):
        try:
            request, length = strict_request(raw[at:])
        except Garbled as error:
            return f"the upstream cannot read it: {error}"
        except Partial:
            wanted.append(("rest", bytes(raw[at:])))
            break
        wanted.append((request.line, request.body))
        at += length
    for reader in LENIENT:
        seen = reader.requests(raw)
        if seen != wanted:
            return f"{reader.name} sees {short(seen)} where another sees {short(wanted)}"
    return None


def short(what, most=300):
    text = repr(what)
    return text if len(text) <= most else f"{text[:most]}…"
