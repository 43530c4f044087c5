"""The h2 package: what no finished client does, HTTP/2 frame by frame (WebSocket by RFC 8441, cookies)."""

import json
import os
import socket
import ssl
import struct
import uuid

import h2.config
import h2.connection
import h2.events
import h2.settings

from kit import check, equal, expect

WAYS = {"h2c": "plain", "TLS": "tls"}


class Http2:
    """A connection of HTTP/2, one frame after the other."""

    def __init__(self, lab, way):
        self.authority, self.scheme = f"localhost:{lab.ports[WAYS[way]]}", "https" if way == "TLS" else "http"
        self.socket = socket.create_connection(("127.0.0.1", lab.ports[WAYS[way]]), 10)
        if way == "TLS":
            context = ssl.create_default_context(cafile=lab.folder / "ca.pem")
            context.set_alpn_protocols(["h2"])
            self.socket = context.wrap_socket(self.socket, server_hostname="localhost")
            equal("the protocol", self.socket.selected_alpn_protocol(), "h2")
        self.h2 = h2.connection.H2Connection(h2.config.H2Configuration(header_encoding="utf-8"))
        self.h2.initiate_connection()
        self.streams, self.settled = {}, False
        self.wait_for(lambda: self.settled, "settings")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.socket.close()

    def open(self, headers, end=True):
        """Sends a request's head; its stream."""
        number = self.h2.get_next_available_stream_id()
        self.streams[number] = Stream(self, number)
        self.h2.send_headers(number, headers, end_stream=end)
        self.flush()
        return self.streams[number]

    def get(self, path, *headers):
        stream = self.open(self.head("GET", path, *headers))
        self.wait_for(lambda: stream.ended, "the answer")
        return stream

    def post(self, path, body, *headers):
        """Sends as much of the body as is wanted."""
        stream = self.open(self.head("POST", path, *headers), end=False)
        stream.send(body, end=True)
        self.wait_for(lambda: stream.ended, "the answer")
        return stream

    def head(self, method, path, *headers):
        return [(":method", method), (":scheme", self.scheme), (":authority", self.authority),
                (":path", path), *headers]

    def flush(self):
        self.socket.sendall(self.h2.data_to_send())

    def wait_for(self, done, what):
        self.flush()
        while not done():
            data = self.socket.recv(1 << 16)
            expect(data, f"the connection was closed before {what}")
            for event in self.h2.receive_data(data):
                self.handle(event)
            self.flush()

    def handle(self, event):
        stream = self.streams.get(getattr(event, "stream_id", None))
        if isinstance(event, h2.events.RemoteSettingsChanged):
            self.settled = True
        elif isinstance(event, h2.events.ConnectionTerminated):
            expect(event.error_code == 0, f"the connection ended with {event.error_code!r}")
        elif isinstance(event, h2.events.ResponseReceived):
            stream.headers = dict(event.headers)
            stream.bare = event.stream_ended is not None
        elif isinstance(event, h2.events.DataReceived):
            stream.data += event.data
            self.h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
        elif isinstance(event, h2.events.StreamEnded):
            stream.ended = True
        elif isinstance(event, h2.events.StreamReset):
            # NO_ERROR after the answer's end says only that the rest of the request is not wanted.
            stream.ended, stream.reset = True, event.error_code or None


class Stream:
    """One request: `headers` of the answer, `data` that is not read yet, `bare` if the head was all."""

    def __init__(self, connection, number):
        self.connection, self.number = connection, number
        self.headers, self.data, self.ended, self.bare, self.reset = {}, b"", False, False, None

    @property
    def status(self):
        return self.headers.get(":status")

    def read(self, size, what="data"):
        self.connection.wait_for(lambda: len(self.data) >= size or self.ended, what)
        expect(len(self.data) >= size, f"the stream ended before {what} (reset: {self.reset})")
        taken, self.data = self.data[:size], self.data[size:]
        return taken

    def send(self, data, end=False):
        """Sends data as flow control permits, unless the answer ends first."""
        h2 = self.connection.h2
        while data and not self.ended:
            room = lambda: self.ended or h2.local_flow_control_window(self.number)
            self.connection.wait_for(room, "room to send")
            if not self.ended:
                size = min(room(), h2.max_outbound_frame_size)
                h2.send_data(self.number, data[:size])
                data = data[size:]
        if end and not self.ended:
            h2.end_stream(self.number)
        self.connection.flush()


# --- WebSocket over HTTP/2 -----------------------------------------------------------------------


def open_websocket(connection, path, *headers):
    """Extended CONNECT; the stream once there is an answer."""
    head = connection.head("CONNECT", path, ("sec-websocket-version", "13"), *headers)
    stream = connection.open([(":protocol", "websocket"), *head], end=False)
    connection.wait_for(lambda: stream.status or stream.ended, "the answer to CONNECT")
    expect(stream.reset is None, f"the stream was reset with {stream.reset!r}")
    return stream


def send_message(stream, opcode, payload):
    """One frame, masked as a client must; under 126 or over 65,535 bytes."""
    size = len(payload)
    length = bytes([size]) if size < 126 else struct.pack("!BQ", 127, size)
    mask = os.urandom(4)
    keys = int.from_bytes((mask * (size // 4 + 1))[:size], "big")
    masked = (int.from_bytes(payload, "big") ^ keys).to_bytes(size, "big")
    stream.send(bytes([128 | opcode, 128 | length[0]]) + length[1:] + mask + masked)


def read_message(stream):
    """Opcode and payload of the next frame."""
    first, second = stream.read(2, "a frame")
    expect(first & 128 and not second & 128, "a frame of a server is whole and not masked")
    size = second
    if second > 125:
        form = "!H" if second == 126 else "!Q"
        size = struct.unpack(form, stream.read(struct.calcsize(form)))[0]
    return first & 15, stream.read(size, "the frame's payload")


TEXT, BINARY, CLOSE, PING, PONG = 1, 2, 8, 9, 10


@check(over=WAYS)
def the_gateway_says_that_it_takes_extended_connect(lab, way):
    with Http2(lab, way) as connection:
        equal("ENABLE_CONNECT_PROTOCOL", connection.h2.remote_settings.enable_connect_protocol, 1)


@check(over=WAYS)
def a_websocket_over_http2_echoes(lab, way):
    with Http2(lab, way) as connection:
        stream = open_websocket(connection, "/ws/echo", ("sec-websocket-protocol", "chat.v1"))
        equal("the status", stream.status, "200")
        equal("the subprotocol", stream.headers.get("sec-websocket-protocol"), "chat.v1")
        for opcode, payload in ((TEXT, b"hello"), (BINARY, os.urandom(1 << 20))):
            send_message(stream, opcode, payload)
            expect(read_message(stream) == (opcode, payload), "another message came back")
        send_message(stream, PING, b"there?")
        equal("the pong", read_message(stream), (PONG, b"there?"))
        send_message(stream, CLOSE, struct.pack("!H", 4002) + b"enough")
        equal("the close", read_message(stream), (CLOSE, struct.pack("!H", 4002) + b"enough"))
        stream.send(b"", end=True)
        connection.wait_for(lambda: stream.ended, "the stream's end")
        equal("the reset", stream.reset, None)


@check(over=WAYS)
def websockets_and_requests_share_a_connection(lab, way):
    with Http2(lab, way) as connection:
        sockets = [open_websocket(connection, "/ws/echo") for _ in range(10)]
        equal("the statuses", {stream.status for stream in sockets}, {"200"})
        for number, stream in enumerate(sockets):
            send_message(stream, TEXT, b"hello from %d" % number)
        equal("the status of a request between", connection.get("/echo").status, "200")
        for number, stream in enumerate(sockets):
            equal("the message", read_message(stream), (TEXT, b"hello from %d" % number))


@check(over=WAYS)
def a_rejected_websocket_over_http2_is_a_bare_429(lab, way):
    caller = ("x-test", str(uuid.uuid4()))
    with Http2(lab, way) as connection:
        equal("the status", open_websocket(connection, "/ws-limited/echo", caller).status, "200")
        rejected = open_websocket(connection, "/ws-limited/echo", caller)
        equal("the status", rejected.status, "429")
        expect("retry-after" in rejected.headers, f"the headers are {rejected.headers}")
        equal("END_STREAM on the head", rejected.bare, True)


# --- requests ------------------------------------------------------------------------------------


@check(over=WAYS)
def cookies_that_came_apart_are_joined(lab, way):
    with Http2(lab, way) as connection:
        answer = connection.get("/echo", ("cookie", "a=1"), ("cookie", "b=2"), ("x-between", "1"), ("cookie", "c=3"))
    seen = [value for name, value in json.loads(answer.data)["headers"] if name.lower() == "cookie"]
    equal("the cookies", seen, ["a=1; b=2; c=3"])


@check(over=WAYS)
def a_reject_ends_the_stream_on_its_head(lab, way):
    caller = ("x-test", str(uuid.uuid4()))
    with Http2(lab, way) as connection:
        equal("the status", connection.get("/limited", caller).status, "200")
        rejected = connection.get("/limited", caller)
        equal("status and END_STREAM on the head", (rejected.status, rejected.bare), ("429", True))


@check(over=WAYS)
def rejected_uploads_leave_the_connection_usable(lab, way):
    """What was sent of them must not be missing in the connection's window: 4 MiB in all."""
    caller = ("x-test", str(uuid.uuid4()))
    with Http2(lab, way) as connection:
        equal("the status", connection.post("/limited", b"hello", caller).status, "200")
        for _ in range(80):
            head = connection.head("POST", "/limited", caller, ("content-length", str(1 << 20)))
            rejected = connection.open(head, end=False)
            rejected.send(bytes(50_000))
            connection.wait_for(lambda: rejected.ended, "the answer")
            equal("the status", rejected.status, "429")
        equal("the status of a request after them", connection.get("/echo").status, "200")


@check(over=WAYS)
def a_body_beyond_the_largest_is_413(lab, way):
    with Http2(lab, way) as connection:
        body = bytes(11 << 20)
        announced = connection.post("/echo", body, ("content-length", str(len(body))))
        equal("the status", announced.status, "413")
        equal("the status of one that was not announced", connection.post("/echo", body).status, "413")
        equal("the status of a request after it", connection.get("/echo").status, "200")


@check(over=WAYS)
def plain_connect_is_refused(lab, way):
    with Http2(lab, way) as connection:
        stream = connection.open([(":method", "CONNECT"), (":authority", "127.0.0.1:1")], end=False)
        connection.wait_for(lambda: stream.status or stream.ended, "the answer to CONNECT")
        expect(stream.reset is not None or stream.status[0] == "4", f"the status is {stream.status}")
        equal("the status of a request after it", connection.get("/echo").status, "200")
