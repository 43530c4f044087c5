"""The backends behind the gateway: plain HTTP/1.1, WebSocket, and gRPC in clear and over TLS.

`python backends.py FOLDER` starts all four on free ports of 127.0.0.1, prints their ports as one
line of JSON, and ends when its standard input does. FOLDER holds `localhost.pem` and its key.
"""

import asyncio
import hashlib
import json
import os
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import grpc
from websockets.asyncio.server import serve
from websockets.exceptions import ConnectionClosed

DOWNLOAD = bytes(range(256)) * 4096 * 20  # 20 MiB


# --- HTTP/1.1 ------------------------------------------------------------------------------------


class Request:
    def __init__(self, head, reader, writer):
        lines = head.decode("latin-1").split("\r\n")
        self.method, self.target, _ = lines[0].split(" ")
        self.headers = [tuple(part.strip() for part in line.split(":", 1)) for line in lines[1:] if line]
        self.url, self.reader, self.writer = urlsplit(self.target), reader, writer
        self.query = {name: values[0] for name, values in parse_qs(self.url.query).items()}
        self.length, self.digest, self.kept, self.trailers = 0, hashlib.sha256(), b"", []

    def header(self, name):
        return next((value for key, value in self.headers if key.lower() == name), None)

    async def read_body(self):
        if self.header("expect"):
            self.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        if self.header("transfer-encoding"):
            while size := int((await self.reader.readline()).split(b";")[0], 16):
                await self.take(size)
                await self.reader.readexactly(2)
            while (line := (await self.reader.readline()).strip()):
                self.trailers.append(line.decode())
        else:
            await self.take(int(self.header("content-length") or 0))

    async def take(self, size):
        while size:
            piece = await self.reader.read(min(size, 1 << 16))
            if not piece:
                raise ConnectionError("the body broke off")
            size -= len(piece)
            self.length += len(piece)
            self.digest.update(piece)
            if self.length < 1 << 16:
                self.kept += piece

    def head(self, status, *headers):
        lines = [f"HTTP/1.1 {status}", *(f"{name}: {value}" for name, value in headers)]
        self.writer.write("\r\n".join([*lines, "", ""]).encode())

    async def answer(self, body, content_type="application/json"):
        body = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.head("200 OK", ("content-type", content_type), ("content-length", len(body)))
        self.writer.write(b"" if self.method == "HEAD" else body)
        await self.writer.drain()

    async def chunk(self, data):
        self.writer.write(b"%x\r\n%b\r\n" % (len(data), data))
        await self.writer.drain()


class Http:
    """What the plain backend answers, by path."""

    def __init__(self):
        self.polls, self.slow_calls = {}, {}

    async def echo(self, request):
        await request.answer({
            "method": request.method, "path": request.target, "headers": request.headers,
            "length": request.length, "sha256": request.digest.hexdigest(), "trailers": request.trailers,
        })

    upload = limited = echo

    async def download(self, request):
        await request.answer(DOWNLOAD, "application/octet-stream")

    async def sse(self, request):
        """Ten events, one every 100 ms, each with the time it was sent at."""
        request.head("200 OK", ("content-type", "text/event-stream"), ("transfer-encoding", "chunked"))
        for _ in range(10):
            await request.chunk(b"data: %f\n\n" % time.time())
            await asyncio.sleep(0.1)
        request.writer.write(b"0\r\n\r\n")

    async def early(self, request):
        request.head("103 Early Hints", ("link", "</style.css>; rel=preload; as=style"))
        await asyncio.sleep(0.1)
        await request.answer({"late": True})

    async def longpoll(self, request):
        """GET waits for the POST of the same `id`, and gets its body."""
        poll = self.polls.setdefault(request.query["id"], asyncio.get_running_loop().create_future())
        if request.method == "POST":
            poll.set_result(request.kept)
            await request.answer({})
        else:
            await request.answer(await poll)

    async def trailers(self, request):
        request.head("200 OK", ("transfer-encoding", "chunked"), ("trailer", "x-checksum"))
        await request.chunk(b"with trailers")
        request.writer.write(b"0\r\nx-checksum: %b\r\n\r\n" % hashlib.sha256(b"with trailers").hexdigest().encode())

    async def slow(self, request):
        """Answers after 20 s; `/slow?seen=ID` tells what became of the call ID."""
        if "seen" in request.query:
            return await request.answer({"state": self.slow_calls.get(request.query["seen"])})
        call = request.query["id"]
        self.slow_calls[call] = "started"
        try:
            # A caller that leaves ends the connection; nothing else may come on it before the answer.
            gone = await asyncio.wait_for(request.reader.read(1), 20) == b""
            self.slow_calls[call] = "left" if gone else "pipelined"
            raise ConnectionError
        except asyncio.TimeoutError:
            self.slow_calls[call] = "answered"
            await request.answer({})

    async def serve(self, reader, writer):
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n"))[:-4]
                request = Request(head, reader, writer)
                await request.read_body()
                answer = getattr(self, request.url.path.split("/")[1], None)
                if answer is None:
                    request.head("404 Not Found", ("content-length", 0))
                else:
                    await answer(request)
                await writer.drain()
                if (request.header("connection") or "").lower() == "close":
                    break
        except (asyncio.IncompleteReadError, ConnectionError, ValueError):
            pass  # It broke off.
        finally:
            writer.close()


# --- WebSocket -----------------------------------------------------------------------------------

closes = {}


async def websocket(ws):
    url = urlsplit(ws.request.path)
    query = {name: values[0] for name, values in parse_qs(url.query).items()}
    what = url.path.rsplit("/", 1)[1]
    try:
        if what == "close":
            await ws.close(int(query["code"]), query.get("reason", ""))
        elif what == "ping":
            await ws.send(f"{await (await ws.ping(b'are you there'))}")
        elif what == "abort":
            ws.transport.abort()
        elif what == "headers":
            await ws.send(json.dumps(list(ws.request.headers.raw_items())))
        elif what == "seen":
            await ws.send(json.dumps(closes.get(query["id"])))
        else:
            while True:
                # Fragments go back as the fragments they came as.
                first, *more = [piece async for piece in ws.recv_streaming()]
                await ws.send([piece for piece in (first, *more) if piece] if more else first)
    except ConnectionClosed:
        pass
    finally:
        await ws.wait_closed()
        if "id" in query and what != "seen":
            closes[query["id"]] = [ws.close_code, ws.close_reason]


def refuse(connection, request):
    if request.path.endswith("/forbidden"):
        return connection.respond(403, "not for you\n")


def choose_subprotocol(connection, offered):
    return next((each for each in offered if each.startswith("chat.")), None)


# --- gRPC ----------------------------------------------------------------------------------------


class Grpc:
    """A service of bytes: no protobuf, the messages are what they are."""

    def __init__(self):
        self.slow_calls = {}

    def unary(self, request, context):
        metadata = [(name, value) for name, value in context.invocation_metadata() if name.startswith("x-")]
        context.send_initial_metadata([("x-initial", "first"), *metadata])
        context.set_trailing_metadata([("x-trailing", "last"), ("x-trailing-bin", bytes(range(256)))])
        return request

    def collect(self, requests, context):
        count, digest = 0, hashlib.sha256()
        for request in requests:
            count += 1
            digest.update(request)
        return json.dumps([count, digest.hexdigest()]).encode()

    def count(self, request, context):
        for number in range(int(request)):
            yield b"%d" % number

    def chat(self, requests, context):
        for request in requests:
            yield request

    def slow(self, request, context):
        """Sleeps, and notes under the request's name when it was left alone and how long it had."""
        call = self.slow_calls[request.decode()] = {"state": "started", "remaining": context.time_remaining()}
        over = threading.Event()
        # The callback runs for every end; before the answer it can only be a cancellation.
        if not context.add_callback(over.set):
            over.set()
        left = over.wait(20)
        call["state"] = "cancelled" if left and not context.is_active() else "answered"
        return b""

    def seen(self, request, context):
        return json.dumps(self.slow_calls.get(request.decode())).encode()

    def fail(self, request, context):
        context.set_trailing_metadata([("x-reason", "because"), ("x-reason-bin", b"\0\xff")])
        context.abort(grpc.StatusCode.FAILED_PRECONDITION, "not in this état: 100%\n")

    def count_and_fail(self, request, context):
        yield from self.count(request, context)
        self.fail(request, context)

    def handlers(self, service):
        return grpc.method_handlers_generic_handler(service, {
            "Unary": grpc.unary_unary_rpc_method_handler(self.unary),
            "Collect": grpc.stream_unary_rpc_method_handler(self.collect),
            "Count": grpc.unary_stream_rpc_method_handler(self.count),
            "Chat": grpc.stream_stream_rpc_method_handler(self.chat),
            "Slow": grpc.unary_unary_rpc_method_handler(self.slow),
            "Seen": grpc.unary_unary_rpc_method_handler(self.seen),
            "Fail": grpc.unary_unary_rpc_method_handler(self.fail),
            "CountAndFail": grpc.unary_stream_rpc_method_handler(self.count_and_fail),
        })


GRPC_SERVICES = ("test.Service", "test.Secure", "test.Limited")


def start_grpc(folder):
    """One server, one state, two ports: in clear and over TLS."""
    options = [("grpc.max_receive_message_length", -1), ("grpc.so_reuseport", 0)]
    server = grpc.server(ThreadPoolExecutor(64), options=options)
    service = Grpc()
    server.add_generic_rpc_handlers([service.handlers(name) for name in GRPC_SERVICES])
    pair = [((folder / "localhost.key").read_bytes(), (folder / "localhost.pem").read_bytes())]
    plain = server.add_insecure_port("127.0.0.1:0")
    tls = server.add_secure_port("127.0.0.1:0", grpc.ssl_server_credentials(pair))
    server.start()
    return server, plain, tls


async def main(folder):
    grpc_server, grpc_port, grpcs_port = start_grpc(folder)
    http = await asyncio.start_server(Http().serve, "127.0.0.1", 0, limit=1 << 20, backlog=1024)
    websockets = await serve(
        websocket, "127.0.0.1", 0, max_size=None, process_request=refuse,
        select_subprotocol=choose_subprotocol, close_timeout=2)
    ports = {
        "app": http.sockets[0].getsockname()[1], "ws": websockets.sockets[0].getsockname()[1],
        "grpc": grpc_port, "grpcs": grpcs_port,
    }
    print(json.dumps(ports), flush=True)
    await asyncio.to_thread(sys.stdin.read)
    grpc_server.stop(None)


if __name__ == "__main__":
    try:
        asyncio.run(main(Path(sys.argv[1])))
    finally:
        # Handlers that still sleep are left where they are.
        os._exit(0)
