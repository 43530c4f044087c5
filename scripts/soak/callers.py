"""Callers of every kind. Each unit comes, does one thing, verifies what it gets, and leaves.

What a caller breaks off itself is no error; everything else that is not exactly as asked for is.
"""

import asyncio
import base64
import hashlib
import hmac
import itertools
import json
import math
import uuid

from websockets.asyncio.client import connect as open_websocket
from websockets.exceptions import InvalidStatus

from backend import content
from http1 import Broken, Http1, Wrong, connect, reset
from http2 import Http2

KEY, SECRET = "a key that only the soak knows", "a secret of more than thirty-two bytes"
IDS = itertools.count(1)
SMALLEST_BODY, LARGEST_BODY = 1 << 10, 5 << 20


def expect(truth, why, connection=None):
    if not truth:
        raise Wrong(f"{why} [{connection}]" if connection else why)


def new_id():
    return f"request-{next(IDS)}"


def any_size(soak, smallest=SMALLEST_BODY, largest=LARGEST_BODY):
    """Small ones as often as large ones, by their order of magnitude."""
    return int(math.exp(soak.random.uniform(math.log(smallest), math.log(largest))))


def open_http1(soak, secure, **options):
    return Http1.open(soak.ports["tls" if secure else "plain"], soak.h1_tls if secure else None, **options)


def open_http2(soak, secure=True, **options):
    return Http2.open(soak.ports["tls" if secure else "plain"], soak.h2_tls if secure else None, **options)


def open_any(soak, secure):
    return soak.random.choice((open_http1, open_http2))(soak, secure)


async def echo(soak, connection, path, method="GET", headers=(), body=None, at_backend=None, **more):
    """A request whose answer tells what the backend got; that is verified and returned."""
    call = new_id()
    answer = await connection.request(method, path, [("x-id", call), *headers], body, **more)
    expect(answer.status == 200, f"the answer is {answer}", connection)
    expect(answer["x-ratelimit-limit"] is not None, f"no limit is told: {answer}", connection)
    try:
        told = json.loads(answer.body)
    except ValueError:
        raise Wrong(f"the answer is {answer} [{connection}]") from None
    seen = {name.lower(): value for name, value in told["headers"]}
    expect(seen.get("x-id") == call, f"the answer is for {seen.get('x-id')}, not {call}", connection)
    expect(seen.get("x-forwarded-for") == "127.0.0.1", f"the backend saw {seen}", connection)
    expect(told["method"] == method and told["path"] == (at_backend or path), f"the backend saw {told}", connection)
    return told


# --- requests ------------------------------------------------------------------------------------


def token(user):
    def part(data):
        return base64.urlsafe_b64encode(data).rstrip(b"=")
    text = part(b'{"alg":"HS256"}') + b"." + part(json.dumps({"sub": user}).encode())
    return (text + b"." + part(hmac.digest(SECRET.encode(), text, "sha256"))).decode()


def some_get(soak):
    """A path, the headers it needs, and the path at the backend."""
    number = soak.random.randrange(1000)
    return soak.random.choice([
        (f"/echo/{number}?q=1", [], None),
        (f"/v1/echo/{number}", [], f"/echo/{number}"),
        ("/key/echo/it", [("x-api-key", KEY)], "/echo/it"),
        ("/user/echo/it", [("authorization", f"Bearer {token(f'user-{number % 50}')}")], "/echo/it"),
        ("/wait/30", [], None),
    ])


async def keep_alive(soak):
    """Forty requests on one connection."""
    async with await open_http1(soak, soak.random.random() < 0.5) as connection:
        for _ in range(40):
            path, headers, at_backend = some_get(soak)
            await echo(soak, connection, path, headers=headers, at_backend=at_backend)
            soak.count("  requests, HTTP/1.1 kept alive")
            await asyncio.sleep(soak.random.uniform(0.05, 0.15))
            if not soak.going:
                return


async def short_lived(soak):
    async with await open_any(soak, soak.random.random() < 0.5) as connection:
        path, headers, at_backend = some_get(soak)
        await echo(soak, connection, path, headers=headers, at_backend=at_backend)


async def pipelined(soak):
    """Five requests at once on HTTP/1.1; the answers come in order."""
    async with await open_http1(soak, False) as connection:
        for number in range(5):
            connection.start("GET", f"/bytes/{1000 + number}?seed={number}")
        for number in range(5):
            answer = await connection.head()
            async for piece in connection.pieces(answer):
                answer.body += piece
            expect(answer.status == 200 and answer.body == content(number, 1000 + number), f"the answer is {answer}", connection)


async def many_streams(soak):
    """Ten rounds of twenty streams at once over TLS: small ones, some bodies, some of them left."""
    async with await open_http2(soak) as connection:
        for _ in range(10):
            await asyncio.gather(*(one_stream(soak, connection) for _ in range(20)))
            await asyncio.sleep(soak.random.uniform(0.3, 0.7))
            if not soak.going:
                return


async def one_stream(soak, connection):
    soak.count("  streams, HTTP/2")
    kind = soak.random.random()
    if kind < 0.7:
        path, headers, at_backend = some_get(soak)
        await echo(soak, connection, path, headers=headers, at_backend=at_backend)
    elif kind < 0.8:
        await upload_on(soak, connection, any_size(soak, largest=1 << 18))
    elif kind < 0.9:
        await download_http2(soak, connection, any_size(soak, largest=1 << 18))
    else:
        await leave_stream(soak, connection)


async def leave_stream(soak, connection):
    """Resets a stream before its answer, in its body, or in the request's."""
    kind = soak.random.randrange(3)
    if kind == 0:
        stream = connection.start("GET", "/wait/5000")
    elif kind == 1:
        stream = connection.start("GET", f"/bytes/{1 << 20}?pause=5", greedy=False)
        expect((await stream.head()).status == 200, f"the answer is {stream.answer}", stream)
        await stream.read()
    else:
        stream = connection.start("POST", "/upload", end=False)
        await stream.send(content(0, 10_000))
    await asyncio.sleep(soak.random.uniform(0, 0.1))
    stream.cancel()


# --- bodies --------------------------------------------------------------------------------------


async def in_pieces(soak, body):
    start = 0
    while start < len(body):
        size = soak.random.choice((1, 1000, 16_384, 65_536, 100_000)) if len(body) < 1 << 17 else 65_536
        yield body[start:start + size]
        start += size
        await asyncio.sleep(0)


async def upload_on(soak, connection, size, chunked=False):
    body = content(soak.random.randrange(1000), size)
    how = {"pieces": in_pieces(soak, body)} if chunked else {"body": body}
    told = await echo(soak, connection, "/upload", "POST", **how)
    wanted = (size, hashlib.sha256(body).hexdigest())
    expect((told["length"], told["sha256"]) == wanted, f"the backend got {told}, not {wanted}", connection)


async def upload(soak):
    async with await open_any(soak, soak.random.random() < 0.5) as connection:
        for _ in range(2):
            await upload_on(soak, connection, any_size(soak))


async def upload_in_chunks(soak):
    async with await open_http1(soak, soak.random.random() < 0.5) as connection:
        for _ in range(2):
            await upload_on(soak, connection, any_size(soak), chunked=True)


def bytes_path(soak, size, pause=0):
    seed = soak.random.randrange(1000)
    path = f"/bytes/{size}?seed={seed}{soak.random.choice(('', '&chunked=1'))}"
    return content(seed, size), path + (f"&pause={pause}" if pause else "")


async def download_http1(soak, connection, size, pause=0):
    """Piece by piece, with a pause after each."""
    (body, path), call, at = bytes_path(soak, size), new_id(), 0
    await connection.ask("GET", path, [("x-id", call)])
    answer = await connection.head()
    expect(answer.status == 200 and answer["x-id"] == call, f"the answer is {answer}, not for {call}", connection)
    async for piece in connection.pieces(answer):
        expect(body[at:at + len(piece)] == piece, f"the body is another from {at} on", connection)
        at += len(piece)
        if pause:
            await asyncio.sleep(pause)
    expect(at == size, f"the body has {at} bytes, not {size}", connection)


async def download_http2(soak, connection, size, pause=0):
    (body, path), call, at = bytes_path(soak, size), new_id(), 0
    stream = connection.start("GET", path, [("x-id", call)], greedy=not pause)
    try:
        answer = await stream.head()
        expect(answer.status == 200 and answer["x-id"] == call, f"the answer is {answer}, not for {call}", stream)
        while piece := await stream.read():
            expect(body[at:at + len(piece)] == piece, f"the body is another from {at} on", stream)
            at += len(piece)
            if pause:
                await asyncio.sleep(pause)
        expect(at == size, f"the body has {at} bytes, not {size}", stream)
    finally:
        stream.forget()


async def download(soak):
    secure = soak.random.random() < 0.5
    if soak.random.random() < 0.5:
        async with await open_http1(soak, secure) as connection:
            for _ in range(2):
                await download_http1(soak, connection, any_size(soak))
    else:
        async with await open_http2(soak, secure) as connection:
            await asyncio.gather(*(download_http2(soak, connection, any_size(soak)) for _ in range(2)))


async def slow_reader(soak):
    """Takes some seconds for a few mebibytes, as fast as it likes."""
    secure = soak.random.random() < 0.5
    if soak.random.random() < 0.5:
        async with await open_http1(soak, secure, limit=1 << 14, receive_buffer=1 << 15) as connection:
            await download_http1(soak, connection, 2 << 20, pause=0.05)
    else:
        async with await open_http2(soak, secure) as connection:
            await asyncio.gather(download_http2(soak, connection, 1 << 20, pause=0.05),
                                 echo(soak, connection, "/echo/beside"))


async def slow_upload(soak):
    async def dripping(body):
        for start in range(0, len(body), 1000):
            yield body[start:start + 1000]
            await asyncio.sleep(0.1)
    async with await open_http1(soak, soak.random.random() < 0.5) as connection:
        body = content(3, 30_000)
        told = await echo(soak, connection, "/upload", "POST", pieces=dripping(body))
        expect(told["sha256"] == hashlib.sha256(body).hexdigest(), f"the backend got {told}", connection)


# --- what is broken off --------------------------------------------------------------------------


async def leave(soak, connection):
    """In good order or not."""
    if soak.random.random() < 0.5:
        connection.reset()
    else:
        await connection.close()


async def abort_upload(soak):
    connection = await open_http1(soak, soak.random.random() < 0.5)
    chunked = soak.random.random() < 0.5
    connection.start("POST", "/upload", length=None if chunked else 1 << 20, chunked=chunked)
    body = bytes(content(1, any_size(soak, 1, 1 << 19)))
    await connection.send(b"%x\r\n%b\r\n" % (len(body), body) if chunked else body)
    await asyncio.sleep(soak.random.uniform(0, 0.2))
    await leave(soak, connection)


async def abort_download(soak):
    connection = await open_http1(soak, soak.random.random() < 0.5)
    body, path = bytes_path(soak, LARGEST_BODY, pause=2)
    await connection.ask("GET", path)
    answer, at, enough = await connection.head(), 0, any_size(soak, 1, 1 << 20)
    expect(answer.status == 200, f"the answer is {answer}", connection)
    async for piece in connection.pieces(answer):
        expect(body[at:at + len(piece)] == piece, f"the body is another from {at} on", connection)
        at += len(piece)
        if at >= enough:
            break
    await leave(soak, connection)


async def abort_wait(soak):
    """Leaves while the backend thinks."""
    connection = await open_http1(soak, soak.random.random() < 0.5)
    connection.start("GET", "/wait/10000")
    await asyncio.sleep(soak.random.uniform(0, 0.3))
    await leave(soak, connection)


async def abort_http2(soak):
    """A whole connection with streams of all kinds is gone at once."""
    connection = await open_http2(soak, soak.random.random() < 0.7)
    for _ in range(5):
        connection.start("GET", "/wait/10000")
        connection.start("GET", f"/bytes/{1 << 20}?pause=5", greedy=False)
        stream = connection.start("POST", "/upload", end=False)
        await stream.send(content(2, 5000))
    await asyncio.sleep(soak.random.uniform(0, 0.3))
    await leave(soak, connection)


async def come_and_go(soak):
    """Opens connections and closes them at once, at every point before a request is whole."""
    kind = soak.random.randrange(6)
    if kind == 0:
        (await connect(soak.ports["plain"]))[1].close()
    elif kind == 1:
        reset((await connect(soak.ports["plain"]))[1])
    elif kind == 2:
        (await connect(soak.ports["tls"]))[1].close()
    elif kind == 3:
        reset((await connect(soak.ports["tls"], soak.h1_tls))[1])
    elif kind == 4:
        _, writer = await connect(soak.ports["plain"])
        writer.write(b"GET /echo HTTP/1.1\r\nhost: local")
        await asyncio.sleep(0.02)
        soak.random.choice((reset, lambda writer: writer.close()))(writer)
    else:
        _, writer = await connect(soak.ports["tls"])
        writer.write(b"\x16\x03\x01\x02\x00\x01\x00\x01")
        await asyncio.sleep(0.02)
        soak.random.choice((reset, lambda writer: writer.close()))(writer)


async def stay_idle(soak):
    """Waits after an answer until the gateway closes, as it says it does."""
    connection = await open_any(soak, soak.random.random() < 0.5)
    await echo(soak, connection, "/echo/idle")
    if isinstance(connection, Http1):
        expect(await connection.ended(40), "it is not closed in good order when it is idle", connection)
    else:
        await asyncio.wait_for(connection.reading, 40)
        expect(connection.end == "closed, not reset" and connection.goaway, f"it is {connection.end}", connection)
    await connection.close()


# --- WebSockets and gRPC -------------------------------------------------------------------------


async def websocket(soak):
    secure = soak.random.random() < 0.5
    options = {"ssl": soak.h1_tls, "server_hostname": "localhost"} if secure else {}
    listener = "tls" if secure else "plain"
    url = f"{'wss' if secure else 'ws'}://127.0.0.1:{soak.ports[listener]}/ws/echo"
    ws = await open_websocket(url, proxy=None, max_size=None, open_timeout=60, close_timeout=20, **options)
    for _ in range(10):
        message = bytes(content(soak.random.randrange(1000), any_size(soak, 1, 1 << 16)))
        await ws.send(message)
        expect(await asyncio.wait_for(ws.recv(), 60) == message, "another message came back")
        await asyncio.sleep(0.05)
    if soak.random.random() < 0.3:
        ws.transport.abort()
        soak.count("  WebSockets aborted")
    else:
        await ws.close(1000, "enough")
        expect((ws.close_code, ws.close_reason) == (1000, "enough"), f"closed with {ws.close_code} {ws.close_reason!r}")
        soak.count("  WebSockets closed")


async def websocket_nowhere(soak):
    try:
        await open_websocket(f"ws://127.0.0.1:{soak.ports['plain']}/nowhere", proxy=None, open_timeout=60)
    except InvalidStatus as refused:
        expect(refused.response.status_code == 404, f"the answer is {refused.response}")
    else:
        raise Wrong("a WebSocket to nowhere was let in")


async def grpc(soak):
    """Unary calls to both services, one left in the middle, all at once on one connection."""
    headers = [("content-type", "application/grpc"), ("te", "trailers")]

    async def unary(service):
        message = bytes(content(soak.random.randrange(1000), any_size(soak, 1, 1 << 17)))
        framed = b"\0" + len(message).to_bytes(4, "big") + message
        answer = await connection.request("POST", f"/{service}/Unary", headers, framed)
        right = answer.status == 200 and answer.body == framed and answer.trailers.get("grpc-status") == "0"
        expect(right, f"the answer is {answer} {answer.trailers}", connection)

    async def left():
        stream = connection.start("POST", "/test.Service/Slow", headers, end=False)
        await stream.send(b"\0\0\0\0\x01a", end=True)
        await asyncio.sleep(0.05)
        stream.cancel()

    async with await open_http2(soak) as connection:
        await asyncio.gather(unary("test.Service"), unary("test.Secure"), unary("test.Service"), left())


# --- refusals ------------------------------------------------------------------------------------


def expect_header_only(answer, status, connection):
    """A refusal is a head and nothing else; one of a limit says when to come back."""
    expect(answer.status == status, f"the answer is {answer}, not {status}", connection)
    expect(not answer.body, f"a refusal has a body: {answer}", connection)
    if isinstance(connection, Http2):
        expect(answer.header_only, f"END_STREAM does not come with the head: {answer}", connection)
    else:
        expect(answer["content-length"] == "0", f"a refusal has no length of 0: {answer}", connection)
    if status == 429:
        expect((answer["retry-after"] or "").isdigit() and int(answer["retry-after"]) >= 1, f"Retry-After: {answer}", connection)
        expect(answer["x-ratelimit-remaining"] == "0", f"X-RateLimit-Remaining: {answer}", connection)


# How often a caller has passed; callers that somebody speaks for just now; who holds places next.
LIMITED, BUSY, HELD = {}, set(), itertools.count()
ALGORITHMS = ("token_bucket", "gcra", "fixed_window", "sliding_window", "sliding_log")


async def limited(soak):
    """Three requests pass, every further one is rejected, now and for as long as this runs."""
    path = f"/limited/{soak.random.choice(ALGORITHMS)}"
    caller = (path, f"caller-{soak.random.randrange(40)}") if soak.random.random() < 0.9 else (path, str(uuid.uuid4()))
    if caller in BUSY:
        return
    BUSY.add(caller)
    try:
        async with await open_any(soak, soak.random.random() < 0.5) as connection:
            for _ in range(5):
                used = LIMITED.get(caller, 0)
                answer = await connection.request("GET", path, [("x-caller", caller[1])])
                if used < 3:
                    expect(answer.status == 200 and answer["x-ratelimit-remaining"] == str(2 - used),
                           f"request {used + 1} of {caller} gets {answer}", connection)
                    LIMITED[caller] = used + 1
                else:
                    expect_header_only(answer, 429, connection)
                    soak.count("  rejects verified")
    finally:
        BUSY.discard(caller)


async def held(soak):
    """Two requests at once hold a caller's places; the third is rejected until one of them is gone."""
    caller = [("x-caller", f"holder-{next(HELD) % 20}")]
    if caller[0] in BUSY:
        return
    BUSY.add(caller[0])
    try:
        async with await open_http2(soak) as holding, await open_any(soak, False) as third:
            path = f"/held/bytes/{LARGEST_BODY}?pause=5"
            streams = [holding.start("GET", path, caller, greedy=False) for _ in range(2)]
            for stream in streams:
                expect((await stream.head()).status == 200, f"the answer is {stream.answer}", stream)
            expect_header_only(await third.request("GET", "/held/echo", caller), 429, third)
            if soak.random.random() < 0.5:
                streams[0].cancel()
            else:
                holding.reset()
            # On another connection, it takes a moment until that is seen.
            await until_free(third, caller)
    finally:
        BUSY.discard(caller[0])


async def until_free(connection, caller, seconds=20):
    for _ in range(seconds * 20):
        answer = await connection.request("GET", "/held/echo", caller)
        if answer.status == 200:
            return
        expect(answer.status == 429, f"the answer is {answer}", connection)
        await asyncio.sleep(0.05)
    raise Wrong(f"places of {caller} are not free within {seconds} s: {answer} [{connection}]")


REFUSALS = [
    (404, "GET", "/nowhere", []),
    (405, "POST", "/get", []),
    (405, "TRACE", "/echo", []),
    (401, "GET", "/key/echo", []),
    (401, "GET", "/key/echo", [("x-api-key", "wrong")]),
    (401, "GET", "/user/echo", [("authorization", "Bearer not.a.token")]),
    (400, "GET", "/echo/%zz", []),
    (431, "GET", "/echo", [(f"x-{number}", "1") for number in range(120)]),
    (413, "POST", "/small", [("content-length", str(1 << 20))]),
    (502, "GET", "/gone", []),
    (502, "GET", "/breaks/0", []),
    (504, "GET", "/hasty/wait/5000", []),
]


async def refused(soak):
    status, method, path, headers = soak.random.choice(REFUSALS)
    connection = await open_any(soak, soak.random.random() < 0.5)
    async with connection:
        if isinstance(connection, Http2) and status == 413:
            stream = connection.start(method, path, headers, end=False)
            answer = await stream.whole()
            stream.forget()
        else:
            answer = await connection.request(method, path, headers)
        expect_header_only(answer, status, connection)
        soak.count(f"  refused with {status}")
        if isinstance(connection, Http2) or not connection.closing:
            await echo(soak, connection, "/echo/after")


async def backends_own(soak):
    """Errors of the backend are passed on as they are."""
    status, call = soak.random.choice((400, 404, 418, 429, 500, 503)), new_id()
    async with await open_any(soak, soak.random.random() < 0.5) as connection:
        answer = await connection.request("GET", f"/status/{status}", [("x-id", call)])
        right = (answer.status, answer.body, answer["x-id"]) == (status, b"the backend's own\n", call)
        expect(right, f"the answer is {answer}", connection)


async def too_large_in_chunks(soak):
    """The limit is passed in the middle of a body that did not say its length."""
    async with await open_http1(soak, soak.random.random() < 0.5) as connection:
        connection.start("POST", "/small", chunked=True)
        for _ in range(5):
            await connection.send(b"4000\r\n" + bytes(content(0, 0x4000)) + b"\r\n")
        answer = await connection.head()
        expect_header_only(answer, 413, connection)


async def broken_backend(soak):
    """A body that breaks off at the backend breaks off here, and is not taken for a whole one."""
    async with await open_any(soak, soak.random.random() < 0.5) as connection:
        try:
            answer = await connection.request("GET", "/breaks/5000")
        except Broken:
            pass
        else:
            raise Wrong(f"half an answer is taken for a whole one: {answer} [{connection}]")
        if isinstance(connection, Http2):
            await echo(soak, connection, "/echo/after")


async def late_head(soak):
    """A head that does not come to its end is a 408."""
    async with await open_http1(soak, soak.random.random() < 0.5) as connection:
        connection.asked = "half a head"
        await connection.send(b"GET /echo HTTP/1.1\r\nhost: localhost\r\n")
        answer = await connection.head()
        expect_header_only(answer, 408, connection)
        expect(await connection.ended(), "it is not closed after a 408", connection)


async def settle(soak):
    """When all is over, every place that was held must be free: a caller may hold two again."""
    async with await open_http2(soak) as connection:
        for number in range(20):
            caller = [("x-caller", f"holder-{number}")]
            answers = await asyncio.gather(*(connection.request("GET", "/held/wait/200", caller) for _ in range(2)))
            statuses = [answer.status for answer in answers]
            if statuses != [200, 200]:
                soak.faults.add("rest", f"places of {caller} are still held: {statuses}")


# Name, what it does, how many of them, and how long each rests in between.
ALL = [
    ("keep-alive connections", keep_alive, 8, 0.2),
    ("short-lived connections", short_lived, 3, 0.3),
    ("pipelined requests", pipelined, 1, 1),
    ("HTTP/2 connections", many_streams, 3, 0.5),
    ("uploads with a length", upload, 2, 1),
    ("uploads in chunks", upload_in_chunks, 2, 1),
    ("slow uploads", slow_upload, 4, 1),
    ("downloads", download, 2, 1),
    ("slow readers", slow_reader, 6, 1),
    ("uploads broken off", abort_upload, 2, 0.4),
    ("downloads broken off", abort_download, 2, 0.4),
    ("waits broken off", abort_wait, 1, 0.4),
    ("HTTP/2 connections broken off", abort_http2, 1, 1),
    ("connections closed at once", come_and_go, 1, 0.15),
    ("idle connections", stay_idle, 6, 1),
    ("WebSockets", websocket, 4, 0.5),
    ("WebSockets refused", websocket_nowhere, 1, 2),
    ("gRPC calls", grpc, 1, 1),
    ("rejected callers", limited, 2, 0.3),
    ("places held", held, 1, 1),
    ("refused requests", refused, 2, 0.4),
    ("backends' own errors", backends_own, 1, 0.5),
    ("bodies too large", too_large_in_chunks, 1, 2),
    ("backends that break off", broken_backend, 1, 1),
    ("heads that are late", late_head, 3, 1),
]
