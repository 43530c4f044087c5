"""The websockets package: messages, fragments, pings, closes and refusals, through the gateway."""

import asyncio
import json
import os
import ssl
import time
import uuid

from websockets.asyncio.client import connect as connect_async
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

from kit import Failed, check, equal, eventually, expect

WAYS = {"ws": "plain", "wss": "tls"}


def address(lab, way, path):
    """The URL and the options to open it with."""
    options = {"proxy": None, "max_size": None, "open_timeout": 10, "close_timeout": 5}
    if way == "wss":
        options["ssl"] = ssl.create_default_context(cafile=lab.folder / "ca.pem")
        options["server_hostname"] = "localhost"
    return f"{way}://127.0.0.1:{lab.ports[WAYS[way]]}{path}", options


def open_websocket(lab, way, path="/ws/echo", **more):
    url, options = address(lab, way, path)
    return connect(url, **options, **more)


def close_of(ws, seconds=5):
    """Waits until the other side closes; code and reason."""
    try:
        message = ws.recv(timeout=seconds)
    except ConnectionClosed as closed:
        return (closed.rcvd.code, closed.rcvd.reason) if closed.rcvd else (1006, "")
    raise Failed(f"it is open and says {message!r}")


def close_seen_by_backend(lab, call):
    """Code and reason that a connection ended with at the backend, asked without the gateway."""
    with connect(f"ws://127.0.0.1:{lab.ports['ws']}/ws/seen?id={call}", proxy=None) as ws:
        return json.loads(ws.recv(timeout=5))


def refusal(lab, way, path, **more):
    """The answer that refuses the upgrade."""
    try:
        open_websocket(lab, way, path, **more).close()
    except InvalidStatus as refused:
        return refused.response
    raise Failed("it was let in")


def echoes(ws, message):
    ws.send(message)
    expect(ws.recv(timeout=20) == message, "another message came back")


@check(over=WAYS)
def text_and_binary_messages_pass(lab, way):
    with open_websocket(lab, way) as ws:
        for message in ("hello", "", "żółw 🐢", b"\0\xff", b""):
            echoes(ws, message)


@check(over=WAYS)
def five_mebibytes_in_a_message(lab, way):
    with open_websocket(lab, way, compression=None) as ws:
        echoes(ws, os.urandom(5 << 20))


@check(over=WAYS)
def a_thousand_small_messages_keep_their_order(lab, way):
    with open_websocket(lab, way) as ws:
        for number in range(1000):
            ws.send(str(number))
        equal("the messages", [ws.recv(timeout=10) for _ in range(1000)], [str(number) for number in range(1000)])


@check(over=WAYS)
def fragments_stay_fragments(lab, way):
    with open_websocket(lab, way) as ws:
        ws.send(["one ", "two ", "three"])
        pieces = [piece for piece in ws.recv_streaming() if piece]
        equal("the fragments", pieces, ["one ", "two ", "three"])


@check(over=WAYS)
def pings_are_answered_from_both_sides(lab, way):
    with open_websocket(lab, way) as ws:
        expect(ws.ping(b"are you there").wait(5), "no pong from the backend")
    with open_websocket(lab, way, "/ws/ping") as ws:
        expect(0 <= float(ws.recv(timeout=5)) < 1, "the backend waited for its pong")


@check(over=WAYS)
def the_backends_close_reaches_the_caller(lab, way):
    for code, reason in ((1000, ""), (1001, "bye"), (4001, "no more")):
        with open_websocket(lab, way, f"/ws/close?code={code}&reason={reason.replace(' ', '%20')}") as ws:
            equal("code and reason", close_of(ws), (code, reason))


@check(over=WAYS)
def the_callers_close_reaches_the_backend(lab, way):
    for code, reason in ((1000, ""), (4002, "enough")):
        call = uuid.uuid4()
        with open_websocket(lab, way, f"/ws/echo?id={call}") as ws:
            echoes(ws, "hello")
            ws.close(code, reason)
        seen = eventually("the backend notices", lambda: close_seen_by_backend(lab, call))
        equal("code and reason", seen, [code, reason])


@check(over=WAYS)
def a_connection_that_breaks_breaks_on_the_other_side(lab, way):
    with open_websocket(lab, way, "/ws/abort") as ws:
        equal("the close code", close_of(ws), (1006, ""))
    call = uuid.uuid4()
    with open_websocket(lab, way, f"/ws/echo?id={call}") as ws:
        echoes(ws, "hello")
        # Shut down and not closed: the thread that reads it is woken.
        ws.socket.shutdown(2)
        seen = eventually("the backend notices", lambda: close_seen_by_backend(lab, call))
    equal("the close code", seen[0], 1006)


@check(over=WAYS)
def a_subprotocol_is_agreed_on(lab, way):
    with open_websocket(lab, way, subprotocols=["chat.v1", "other"]) as ws:
        equal("the subprotocol", ws.subprotocol, "chat.v1")
    with open_websocket(lab, way) as ws:
        equal("the subprotocol", ws.subprotocol, None)


@check(over=WAYS)
def messages_may_be_compressed(lab, way):
    with open_websocket(lab, way, compression="deflate") as ws:
        told = ws.response.headers.get("Sec-WebSocket-Extensions", "")
        expect(told.startswith("permessage-deflate"), f"the extensions are {told!r}")
        echoes(ws, "again and " * 100_000)
    with open_websocket(lab, way, compression=None) as ws:
        equal("the extensions", ws.response.headers.get("Sec-WebSocket-Extensions"), None)


@check(over=WAYS)
def the_backend_learns_who_called(lab, way):
    with open_websocket(lab, way, "/ws/headers", additional_headers={"X-Mine": "1"}) as ws:
        headers = {name.lower(): value for name, value in json.loads(ws.recv(timeout=5))}
    equal("X-Mine", headers.get("x-mine"), "1")
    equal("X-Forwarded-For", headers.get("x-forwarded-for"), "127.0.0.1")
    equal("X-Forwarded-Proto", headers.get("x-forwarded-proto"), "https" if way == "wss" else "http")


@check(over=WAYS)
def fifty_at_once(lab, way):
    async def all_of_them():
        url, options = address(lab, way, "/ws/echo")
        everybody = await asyncio.gather(*(connect_async(url, **options) for _ in range(50)))
        for number, ws in enumerate(everybody):
            await ws.send(f"hello from {number}")
        answers = [await asyncio.wait_for(ws.recv(), 10) for ws in everybody]
        await asyncio.gather(*(ws.close() for ws in everybody))
        return answers

    equal("the answers", asyncio.run(all_of_them()), [f"hello from {number}" for number in range(50)])


@check(over=WAYS)
def a_reject_is_a_429_before_the_upgrade(lab, way):
    caller = {"X-Test": str(uuid.uuid4())}
    with open_websocket(lab, way, "/ws-limited/echo", additional_headers=caller) as ws:
        echoes(ws, "hello")
    refused = refusal(lab, way, "/ws-limited/echo", additional_headers=caller)
    equal("the status", refused.status_code, 429)
    expect("Retry-After" in refused.headers, f"the headers are {dict(refused.headers.raw_items())}")
    equal("the body", refused.body, b"")


@check(over=WAYS)
def what_the_backend_refuses_stays_refused(lab, way):
    refused = refusal(lab, way, "/ws/forbidden")
    equal("status and body", (refused.status_code, refused.body), (403, b"not for you\n"))
    equal("the status of no route", refusal(lab, way, "/nowhere").status_code, 404)


@check(over=WAYS)
def an_idle_tunnel_is_closed_and_a_busy_one_is_not(lab, way):
    with open_websocket(lab, way, "/ws-hasty/echo") as ws:
        for _ in range(8):
            echoes(ws, "still here")
            time.sleep(0.3)
        began = time.monotonic()
        close_of(ws)
        took = time.monotonic() - began
        expect(0.5 < took < 2.5, f"it was closed after {took:.1f} s of silence")
