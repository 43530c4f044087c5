"""The backend behind the gateway: bodies of known content, slow answers, and bad manners on request.

`python backend.py` listens on two free ports of 127.0.0.1, prints them as one line of JSON, and ends
when its standard input does. What the backend of ../clients can do, this one can do, too.
"""

import asyncio
import json
import os
import random
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent.parent / "clients"))
from backends import Http

LARGEST = 6 << 20
# Not compressible, and no two places in it alike: a piece that is lost, doubled or moved is noticed.
BLOCK = random.Random(1).randbytes(1 << 20)
STREAM = memoryview(BLOCK * (LARGEST // len(BLOCK) + 1))
PIECE = 1 << 16


def content(seed, length):
    """The body that goes by this number."""
    start = seed * 7919 % len(BLOCK)
    return STREAM[start:start + length]


class Backend(Http):
    """What is answered, by the first segment of the path. `x-id` goes back as it came."""

    async def bytes(self, request):
        """`/bytes/LENGTH?seed=N`, with `chunked=1` without a length, with `pause=MS` slowly."""
        body = content(int(request.query.get("seed", 0)), int(request.url.path.split("/")[2]))
        chunked, pause = "chunked" in request.query, int(request.query.get("pause", 0)) / 1000
        framing = ("transfer-encoding", "chunked") if chunked else ("content-length", len(body))
        request.head("200 OK", framing, ("x-id", request.header("x-id") or ""))
        for start in range(0, len(body), PIECE):
            piece = body[start:start + PIECE]
            if chunked:
                await request.chunk(piece)
            else:
                request.writer.write(piece)
                await request.writer.drain()
            if pause:
                await asyncio.sleep(pause)
        if chunked:
            request.writer.write(b"0\r\n\r\n")

    async def wait(self, request):
        """`/wait/MS`: answers later. A caller who leaves meanwhile ends the connection."""
        try:
            left = await asyncio.wait_for(request.reader.read(1), int(request.url.path.split("/")[2]) / 1000)
            raise ConnectionError("left" if left == b"" else "pipelined")
        except asyncio.TimeoutError:
            await self.echo(request)

    async def status(self, request):
        """`/status/CODE`: an answer that is the backend's own, whatever it says."""
        body = b"the backend's own\n"
        request.head(f"{request.url.path.split('/')[2]} Own", ("content-length", len(body)),
                     ("x-id", request.header("x-id") or ""))
        request.writer.write(body)

    async def breaks(self, request):
        """`/breaks/AFTER`: announces a mebibyte and hangs up after so many bytes; 0: without a word."""
        after = int(request.url.path.split("/")[2])
        if after:
            request.head("200 OK", ("content-length", 1 << 20))
            request.writer.write(content(0, after))
            await request.writer.drain()
        raise ConnectionError


async def main():
    backend = Backend()
    servers = [await asyncio.start_server(backend.serve, "127.0.0.1", 0, limit=1 << 20, backlog=1024)
               for _ in range(2)]
    first, second = (server.sockets[0].getsockname()[1] for server in servers)
    print(json.dumps({"one": first, "two": second}), flush=True)
    await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    try:
        asyncio.run(main())
    finally:
        os._exit(0)
