"""HTTP/1.1 as a client, strictly: whatever is not as it should be is told in full."""

import asyncio
import itertools
import socket
import ssl
import struct
import time

PATIENCE = 60  # seconds; a machine that is busy is not an error, silence is
NUMBERS = itertools.count(1)


class Broken(Exception):
    """A connection that did not do what it should. `silent`: not a byte of an answer came."""

    def __init__(self, why, silent=False):
        super().__init__(why)
        self.silent = silent


class Wrong(Exception):
    """An answer that is not the one that was asked for."""


class Answer:
    def __init__(self, status, headers):
        self.status, self.headers, self.body, self.trailers, self.header_only = status, headers, b"", {}, False

    def __getitem__(self, name):
        return self.headers.get(name)

    def __str__(self):
        return f"{self.status} {self.headers} body of {len(self.body)}: {bytes(self.body[:80])!r}"


async def patiently(what, awaitable, seconds=PATIENCE):
    try:
        return await asyncio.wait_for(awaitable, seconds)
    except asyncio.TimeoutError:
        raise Broken(f"{what}: nothing within {seconds} s") from None


def client_tls(folder, protocol):
    """Trusts the authority of the test and asks for one protocol."""
    context = ssl.create_default_context(cafile=folder / "ca.pem")
    context.set_alpn_protocols([protocol])
    return context


def reset(writer):
    """Closes a connection without a goodbye."""
    raw = writer.get_extra_info("socket")
    if raw is not None and raw.fileno() >= 0:
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


async def connect(port, tls=None, limit=1 << 16, receive_buffer=None):
    """A connection to 127.0.0.1: reader and writer."""
    # Said in full, since asyncio sets TCP_NODELAY only where it is: a head may not wait for an acknowledgement.
    raw = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    raw.setblocking(False)
    if receive_buffer:
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    try:
        await asyncio.wait_for(asyncio.get_running_loop().sock_connect(raw, ("127.0.0.1", port)), PATIENCE)
        more = {"ssl": tls, "server_hostname": "localhost"} if tls else {}
        return await asyncio.wait_for(asyncio.open_connection(sock=raw, limit=limit, **more), PATIENCE)
    except (OSError, asyncio.TimeoutError) as error:
        raw.close()
        raise Broken(f"connecting to port {port}{' with TLS' if tls else ''}: {error!r}") from None


class Http1:
    """A connection. After `closing`, the server has said that it takes no more requests."""

    def __init__(self, reader, writer, port, tls):
        self.reader, self.writer, self.port, self.tls = reader, writer, port, tls
        self.began, self.requests, self.asked, self.closing = time.monotonic(), 0, "nothing", False
        self.local = writer.get_extra_info("sockname")

    @classmethod
    async def open(cls, port, tls=None, **options):
        return cls(*await connect(port, tls, **options), port, tls)

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_):
        await self.close()

    def __str__(self):
        return (f"HTTP/1.1{' and TLS' if self.tls else ''}, {self.local and self.local[1]} to {self.port}, request "
                f"{self.requests} on it, {time.monotonic() - self.began:.3f} s old: {self.asked}")

    def broken(self, why, silent=False):
        return Broken(f"{why} [{self}]", silent)

    async def close(self):
        self.writer.close()
        try:
            await asyncio.wait_for(self.writer.wait_closed(), 5)
        except (OSError, asyncio.TimeoutError):
            self.writer.transport.abort()

    def reset(self):
        reset(self.writer)

    def is_closed(self):
        """Whether the server has hung up, as far as it is known here."""
        return self.reader.at_eof() or self.reader.exception() is not None or self.writer.is_closing()

    async def request(self, method, path, headers=(), body=None, pieces=None):
        """Asks, and reads the whole answer. `pieces`: a body in chunks, from anything asynchronous."""
        await self.ask(method, path, headers, body, pieces)
        answer = await self.head()
        async for piece in self.pieces(answer, method):
            answer.body += piece
        return answer

    async def ask(self, method, path, headers=(), body=None, pieces=None):
        self.start(method, path, headers, None if body is None else len(body), pieces is not None)
        try:
            if body is not None:
                self.writer.write(body)
            if pieces is not None:
                async for piece in pieces:
                    await self.send(b"%x\r\n%b\r\n" % (len(piece), piece))
                self.writer.write(b"0\r\n\r\n")
            await asyncio.wait_for(self.writer.drain(), PATIENCE)
        except asyncio.TimeoutError:
            raise self.broken(f"what is sent is not taken within {PATIENCE} s") from None
        except OSError:
            pass  # An answer may have come before it.

    def start(self, method, path, headers=(), length=None, chunked=False):
        """Sends a head."""
        self.requests += 1
        self.asked = f"{method} {path} {dict(headers)}"
        framing = [("content-length", length)] if length is not None else []
        framing += [("transfer-encoding", "chunked")] if chunked else []
        lines = [f"{name}: {value}" for name, value in [("host", "localhost"), *headers, *framing]]
        self.writer.write("\r\n".join([f"{method} {path} HTTP/1.1", *lines, "", ""]).encode())

    async def send(self, data):
        self.writer.write(data)
        await asyncio.wait_for(self.writer.drain(), PATIENCE)

    async def head(self):
        """The head of the final answer."""
        while True:
            try:
                text = await asyncio.wait_for(self.reader.readuntil(b"\r\n\r\n"), PATIENCE)
            except asyncio.IncompleteReadError as cut:
                raise self.broken(f"the connection was closed, not reset, after {cut.partial!r}", not cut.partial) from None
            except OSError as error:
                seen = bytes(self.reader._buffer)
                raise self.broken(f"{error!r} after {seen!r}", not seen) from None
            except asyncio.LimitOverrunError:
                raise self.broken("a head without an end") from None
            except asyncio.TimeoutError:
                seen = bytes(self.reader._buffer)
                raise self.broken(f"no head within {PATIENCE} s, but {seen!r}") from None
            first, *lines = text[:-4].decode("latin-1").split("\r\n")
            version, status = first.split(" ")[:2]
            if version != "HTTP/1.1":
                raise self.broken(f"an answer that begins with {first!r}")
            headers = {}
            for name, value in (line.split(":", 1) for line in lines):
                name = name.lower()
                headers[name] = f"{headers[name]}, {value.strip()}" if name in headers else value.strip()
            if status[0] != "1" or status == "101":
                self.closing = headers.get("connection", "").lower() == "close"
                return Answer(int(status), headers)

    async def pieces(self, answer, method="GET"):
        """The body as it comes."""
        length = answer["content-length"]
        if method == "HEAD" or answer.status in (204, 304):
            return
        try:
            if answer["transfer-encoding"] == "chunked":
                while size := int((await asyncio.wait_for(self.reader.readuntil(b"\r\n"), PATIENCE)).split(b";")[0], 16):
                    async for piece in self.exactly(size):
                        yield piece
                    if await asyncio.wait_for(self.reader.readexactly(2), PATIENCE) != b"\r\n":
                        raise self.broken("a chunk that does not end")
                while line := (await asyncio.wait_for(self.reader.readuntil(b"\r\n"), PATIENCE))[:-2].decode():
                    name, value = line.split(":", 1)
                    answer.trailers[name.lower()] = value.strip()
            elif length is None:
                raise self.broken(f"an answer without a length: {answer}")
            else:
                async for piece in self.exactly(int(length)):
                    yield piece
        except (OSError, asyncio.IncompleteReadError, ValueError) as error:
            raise self.broken(f"the body breaks off with {error!r} after the head {answer.status} {answer.headers}") from None
        except asyncio.TimeoutError:
            raise self.broken(f"the body stops for {PATIENCE} s after the head {answer.status} {answer.headers}") from None

    async def exactly(self, size):
        left = size
        while left:
            piece = await asyncio.wait_for(self.reader.read(min(left, 1 << 16)), PATIENCE)
            if not piece:
                raise asyncio.IncompleteReadError(b"", left)
            left -= len(piece)
            yield piece

    async def ended(self, seconds=PATIENCE):
        """Waits until the server closes; whether it did so without another word."""
        try:
            return await asyncio.wait_for(self.reader.read(1), seconds) == b""
        except ConnectionResetError:
            return True
        except asyncio.TimeoutError:
            return False
