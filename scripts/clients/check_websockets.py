"""The websockets package: messages, fragments, pings, closes and refusals, through the gateway."""

import asyncio
import json
import os
import ssl
import time
import uuid

from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from kit import Failed, check, equal, expect

WAYS = {"ws": "plain", "wss": "tls"}


def open_websocket(lab, way, path="/ws/echo", **more):
    options = {"proxy": None, "max_size": None, "open_timeout": 10, "close_timeout": 5, **more}
    if way == "wss":
        options["ssl"] = ssl.create_default_context(cafile=lab.folder / "ca.pem")
        options["server_hostname"] = "localhost"
    return connect(f"{way}://127.0.0.1:{lab.ports[WAYS[way]]}{path}", **options)


async def receive(ws):
    return await asyncio.wait_for(ws.recv(), 20)


async def echoes(ws, message):
    await ws.send(message)
    expect(await receive(ws) == message, "another message came back")


async def close_of(ws):
    """Waits until the other side closes; code and reason."""
    try:
        message = await asyncio.wait_for(ws.recv(), 5)
    except ConnectionClosed as closed:
        return (closed.rcvd.code, closed.rcvd.reason) if closed.rcvd else (1006, "")
    raise Failed(f"it is open and says {message!r}")


async def close_seen_by_backend(lab, call):
    """Code and reason that a connection ended with at the backend, asked without the gateway."""
    for _ in range(100):
        async with connect(f"ws://127.0.0.1:{lab.ports['ws']}/ws/seen?id={call}", proxy=None) as ws:
            if seen := json.loads(await receive(ws)):
                return tuple(seen)
        await asyncio.sleep(0.05)
    raise Failed("the backend does not notice within 5 s")


async def refusal(lab, way, path, **more):
    """The answer that refuses the upgrade."""
    try:
        await (await open_websocket(lab, way, path, **more)).close()
    except InvalidStatus as refused:
        return refused.response
    raise Failed("it was let in")


@check(over=WAYS)
async def text_and_binary_messages_pass(lab, way):
    async with open_websocket(lab, way) as ws:
        for message in ("hello", "", "żółw 🐢", b"\0\xff", b""):
            await echoes(ws, message)


@check(over=WAYS)
async def five_mebibytes_in_a_message(lab, way):
    async with open_websocket(lab, way, compression=None) as ws:
        await echoes(ws, os.urandom(5 << 20))


@check(over=WAYS)
async def a_thousand_small_messages_keep_their_order(lab, way):
    messages = [str(number) for number in range(1000)]
    async with open_websocket(lab, way) as ws:
        for message in messages:
            await ws.send(message)
        equal("the messages", [await receive(ws) for _ in messages], messages)


@check(over=WAYS)
async def fragments_stay_fragments(lab, way):
    async with open_websocket(lab, way) as ws:
        await ws.send(["one ", "two ", "three"])
        pieces = [piece async for piece in ws.recv_streaming() if piece]
        equal("the fragments", pieces, ["one ", "two ", "three"])


@check(over=WAYS)
async def pings_are_answered_from_both_sides(lab, way):
    async with open_websocket(lab, way) as ws:
        await asyncio.wait_for(await ws.ping(b"are you there"), 5)
    async with open_websocket(lab, way, "/ws/ping") as ws:
        expect(0 <= float(await receive(ws)) < 1, "the backend waited for its pong")


@check(over=WAYS)
async def the_backends_close_reaches_the_caller(lab, way):
    for code, reason in ((1000, ""), (1001, "bye"), (4001, "no-more")):
        async with open_websocket(lab, way, f"/ws/close?code={code}&reason={reason}") as ws:
            equal("code and reason", await close_of(ws), (code, reason))


@check(over=WAYS)
async def the_callers_close_reaches_the_backend(lab, way):
    for code, reason in ((1000, ""), (4002, "enough")):
        call = uuid.uuid4()
        async with open_websocket(lab, way, f"/ws/echo?id={call}") as ws:
            await echoes(ws, "hello")
            await ws.close(code, reason)
        equal("code and reason", await close_seen_by_backend(lab, call), (code, reason))


@check(over=WAYS)
async def a_connection_that_breaks_breaks_on_the_other_side(lab, way):
    async with open_websocket(lab, way, "/ws/abort") as ws:
        equal("the close code", await close_of(ws), (1006, ""))
    call = uuid.uuid4()
    async with open_websocket(lab, way, f"/ws/echo?id={call}") as ws:
        await echoes(ws, "hello")
        ws.transport.abort()
        equal("the close code", await close_seen_by_backend(lab, call), (1006, ""))


@check(over=WAYS)
async def a_subprotocol_is_agreed_on(lab, way):
    async with open_websocket(lab, way, subprotocols=["other", "chat.v1"]) as ws:
        equal("the subprotocol", ws.subprotocol, "chat.v1")
    async with open_websocket(lab, way) as ws:
        equal("the subprotocol", ws.subprotocol, None)


@check(over=WAYS)
async def messages_may_be_compressed(lab, way):
    async with open_websocket(lab, way, compression="deflate") as ws:
        told = ws.response.headers.get("Sec-WebSocket-Extensions", "")
        expect(told.startswith("permessage-deflate"), f"the extensions are {told!r}")
        await echoes(ws, "again and " * 100_000)
    async with open_websocket(lab, way, compression=None) as ws:
        equal("the extensions", ws.response.headers.get("Sec-WebSocket-Extensions"), None)


@check(over=WAYS)
async def the_backend_learns_who_called(lab, way):
    async with open_websocket(lab, way, "/ws/headers", additional_headers={"X-Mine": "1"}) as ws:
        headers = {name.lower(): value for name, value in json.loads(await receive(ws))}
    equal("X-Mine", headers.get("x-mine"), "1")
    equal("X-Forwarded-For", headers.get("x-forwarded-for"), "127.0.0.1")
    equal("X-Forwarded-Proto", headers.get("x-forwarded-proto"), "https" if way == "wss" else "http")


@check(over=WAYS)
async def fifty_at_once(lab, way):
    everybody = await asyncio.gather(*(open_websocket(lab, way) for _ in range(50)))
    for number, ws in enumerate(everybody):
        await ws.send(f"hello from {number}")
    equal("the answers", [await receive(ws) for ws in everybody], [f"hello from {number}" for number in range(50)])
    await asyncio.gather(*(ws.close() for ws in everybody))


@check(over=WAYS)
async def a_reject_is_a_429_before_the_upgrade(lab, way):
    caller = {"X-Test": str(uuid.uuid4())}
    async with open_websocket(lab, way, "/ws-limited/echo", additional_headers=caller) as ws:
        await echoes(ws, "hello")
    refused = await refusal(lab, way, "/ws-limited/echo", additional_headers=caller)
    equal("status and body", (refused.status_code, refused.body), (429, b""))
    expect("Retry-After" in refused.headers, f"the headers are {dict(refused.headers.raw_items())}")


@check(over=WAYS)
async def what_the_backend_refuses_stays_refused(lab, way):
    refused = await refusal(lab, way, "/ws/forbidden")
    equal("status and body", (refused.status_code, refused.body), (403, b"not for you\n"))


@check(over=WAYS)
async def no_route_is_404(lab, way):
    equal("the status", (await refusal(lab, way, "/nowhere")).status_code, 404)


@check(over=WAYS)
async def an_idle_tunnel_is_closed_and_a_busy_one_is_not(lab, way):
    async with open_websocket(lab, way, "/ws-hasty/echo") as ws:
        for _ in range(8):
            await echoes(ws, "still here")
            await asyncio.sleep(0.3)
        began = time.monotonic()
        await close_of(ws)
        took = time.monotonic() - began
        expect(0.5 < took < 2.5, f"it was closed after {took:.1f} s of silence")
