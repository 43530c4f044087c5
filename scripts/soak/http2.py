"""HTTP/2 as a client: many streams on one connection, each with its own beginning and end."""

import asyncio
import time

import h2.config
import h2.connection
import h2.errors
import h2.events
import h2.exceptions
import h2.settings

from http1 import PATIENCE, Answer, Broken, connect, reset

GOAWAY = 7
ROOM = 1 << 20  # what all streams together may be sent ahead


class Unprocessed(Broken):
    """The server has said that it has not begun with this request: it may be sent again."""


class Http2:
    def __init__(self, reader, writer, port, tls):
        self.reader, self.writer, self.port, self.tls = reader, writer, port, tls
        self.began, self.streams, self.end, self.goaway = time.monotonic(), {}, None, None
        self.local, self.requests, self.unsplit = writer.get_extra_info("sockname"), 0, b""
        self.h2 = h2.connection.H2Connection(h2.config.H2Configuration(header_encoding="utf-8"))
        self.settled, self.room = asyncio.Event(), asyncio.Event()

    @classmethod
    async def open(cls, port, tls=None, window=65535, **options):
        self = cls(*await connect(port, tls, **options), port, tls)
        if tls and self.writer.get_extra_info("ssl_object").selected_alpn_protocol() != "h2":
            raise Broken(f"HTTP/2 was not agreed on [{self}]")
        self.h2.local_settings = h2.settings.Settings(client=True, initial_values={
            h2.settings.SettingCodes.ENABLE_PUSH: 0, h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: window})
        self.h2.initiate_connection()
        self.h2.increment_flow_control_window(ROOM)
        self.flush()
        self.reading = asyncio.create_task(self.read())
        try:
            await asyncio.wait_for(self.settled.wait(), PATIENCE)
        except asyncio.TimeoutError:
            self.reset()
            raise Broken(f"no settings within {PATIENCE} s [{self}]") from None
        # Whoever is told to go away at once may come again: nothing was begun.
        if self.end and not self.goaway:
            self.reset()
            raise Broken(f"the connection is {self.end} before its settings [{self}]")
        return self

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_):
        await self.close()

    def __str__(self):
        return (f"HTTP/2{' and TLS' if self.tls else ''}, {self.local and self.local[1]} to {self.port}, "
                f"{self.requests} requests on it, {time.monotonic() - self.began:.3f} s old, goaway {self.goaway}")

    @property
    def usable(self):
        return not self.end and self.goaway is None

    def flush(self):
        data = self.h2.data_to_send()
        if data and not self.writer.is_closing():
            self.writer.write(data)

    async def close(self):
        if not self.end and not self.writer.is_closing():
            try:
                self.h2.close_connection()
                self.flush()
            except h2.exceptions.ProtocolError:
                pass
        self.over("closed by ourselves")
        self.writer.close()
        try:
            await asyncio.wait_for(self.writer.wait_closed(), 5)
        except (OSError, asyncio.TimeoutError):
            self.writer.transport.abort()
        self.reading.cancel()

    def reset(self):
        self.over("reset by ourselves")
        self.reading.cancel()
        reset(self.writer)

    # --- what comes ------------------------------------------------------------------------------

    async def read(self):
        why = "closed, not reset"
        try:
            while data := await self.reader.read(1 << 16):
                for event in self.h2.receive_data(self.without_goaways(data)):
                    self.take(event)
                self.flush()
        except OSError as error:
            why = repr(error)
        except h2.exceptions.ProtocolError as error:
            why = f"not understood: {error!r}"
        self.over(why)

    def without_goaways(self, data):
        """h2 takes a GOAWAY for the end of everything; what was begun before it goes on, though."""
        data, kept, start = self.unsplit + data, b"", 0
        while len(data) - start >= 9:
            end = start + 9 + int.from_bytes(data[start:start + 3], "big")
            if end > len(data):
                break
            frame = data[start:end]
            if frame[3] == GOAWAY:
                self.goaway = int.from_bytes(frame[9:13], "big") & 0x7FFFFFFF, int.from_bytes(frame[13:17], "big")
                for stream in [each for each in self.streams.values() if each.number > self.goaway[0]]:
                    stream.fail(Unprocessed(f"beyond the GOAWAY {self.goaway} [{stream}]", True))
            else:
                kept += frame
            start = end
        self.unsplit = data[start:]
        return kept

    def over(self, why):
        self.end = self.end or why
        for stream in list(self.streams.values()):
            stream.fail(Broken(f"the connection is {self.end} [{stream}]", stream.answer is None))
        self.settled.set()
        self.room.set()

    def take(self, event):
        stream = self.streams.get(getattr(event, "stream_id", None))
        if isinstance(event, h2.events.RemoteSettingsChanged):
            self.settled.set()
        if isinstance(event, (h2.events.RemoteSettingsChanged, h2.events.WindowUpdated)):
            self.room.set()
        if isinstance(event, h2.events.DataReceived):
            if stream is None or stream.greedy:
                self.acknowledge(event.stream_id, event.flow_controlled_length)
                size = 0
            else:
                size = event.flow_controlled_length
            if stream:
                stream.put(event.data, size)
        elif stream is None:
            return
        elif isinstance(event, h2.events.ResponseReceived):
            headers = dict(event.headers)
            stream.answer = Answer(int(headers.pop(":status")), headers)
            stream.answer.header_only = event.stream_ended is not None
            stream.changed.set()
        elif isinstance(event, h2.events.TrailersReceived):
            stream.answer.trailers = dict(event.headers)
        elif isinstance(event, h2.events.StreamEnded):
            stream.ended = True
            stream.changed.set()
        elif isinstance(event, h2.events.StreamReset):
            kind = Unprocessed if event.error_code == h2.errors.ErrorCodes.REFUSED_STREAM else Broken
            stream.fail(kind(f"reset with {event.error_code!r} [{stream}]", stream.answer is None))

    def acknowledge(self, number, size):
        if size and not self.end:
            self.h2.acknowledge_received_data(size, number)
            self.flush()

    # --- what is asked ---------------------------------------------------------------------------

    def start(self, method, path, headers=(), end=True, greedy=True):
        """Begins a request; its stream. Not `greedy`: no more is taken than is read."""
        if self.end or self.goaway:
            raise Unprocessed(f"the connection is {self.end or 'going away'} before a request [{self}]", True)
        self.requests += 1
        number = self.h2.get_next_available_stream_id()
        stream = self.streams[number] = Stream(self, number, f"{method} {path} {dict(headers)}", greedy)
        scheme = "https" if self.tls else "http"
        pseudo = [(":method", method), (":path", path), (":scheme", scheme), (":authority", "localhost")]
        self.h2.send_headers(number, pseudo + list(headers), end_stream=end)
        self.flush()
        return stream

    async def request(self, method, path, headers=(), body=None):
        """Asks, and reads the whole answer."""
        stream = self.start(method, path, headers, end=body is None)
        try:
            if body is not None:
                await stream.send(body, end=True)
            return await stream.whole()
        finally:
            stream.forget()


class Stream:
    def __init__(self, connection, number, asked, greedy):
        self.connection, self.number, self.asked, self.greedy = connection, number, asked, greedy
        self.answer, self.error, self.ended, self.pieces = None, None, False, []
        self.changed = asyncio.Event()

    def __str__(self):
        return f"stream {self.number}: {self.asked}; {self.connection}"

    def put(self, data, size):
        self.pieces.append((data, size))
        self.changed.set()

    def fail(self, error):
        if not self.ended:
            self.error = self.error or error
        self.changed.set()
        self.connection.room.set()

    def forget(self):
        self.connection.streams.pop(self.number, None)

    def cancel(self):
        """Resets the stream; whoever else is on the connection goes on."""
        self.forget()
        connection = self.connection
        if not connection.end:
            try:
                connection.h2.reset_stream(self.number, h2.errors.ErrorCodes.CANCEL)
            except (h2.exceptions.StreamClosedError, h2.exceptions.NoSuchStreamError):
                pass
            connection.acknowledge(self.number, sum(size for _, size in self.pieces))
            connection.flush()

    async def send(self, data, end=False):
        """As much as the windows allow, and the rest as they open. An answer that is complete ends it."""
        connection, data = self.connection, memoryview(data)
        while not self.ended:
            if self.error:
                raise self.error
            room = min(connection.h2.local_flow_control_window(self.number), connection.h2.max_outbound_frame_size)
            if data and room <= 0:
                connection.room.clear()
                try:
                    await asyncio.wait_for(connection.room.wait(), PATIENCE)
                except asyncio.TimeoutError:
                    raise Broken(f"no window is opened within {PATIENCE} s [{self}]") from None
                continue
            piece, data = data[:room], data[room:]
            try:
                connection.h2.send_data(self.number, bytes(piece), end_stream=end and not data)
            except h2.exceptions.ProtocolError as error:
                raise self.error or Broken(f"{error!r} while sending [{self}]") from None
            connection.flush()
            try:
                await asyncio.wait_for(connection.writer.drain(), PATIENCE)
            except OSError as error:
                raise self.error or Broken(f"{error!r} while sending [{self}]") from None
            if not data:
                return

    async def wait(self):
        self.changed.clear()
        try:
            await asyncio.wait_for(self.changed.wait(), PATIENCE)
        except asyncio.TimeoutError:
            raise Broken(f"nothing within {PATIENCE} s [{self}]") from None

    async def head(self):
        while self.answer is None:
            if self.error:
                raise self.error
            await self.wait()
        return self.answer

    async def read(self):
        """The next piece of the body, or nothing at its end."""
        while True:
            if self.pieces:
                data, size = self.pieces.pop(0)
                self.connection.acknowledge(self.number, size)
                if data:
                    return data
            elif self.ended:
                return b""
            elif self.error:
                raise self.error
            else:
                await self.wait()

    async def whole(self):
        answer, body = await self.head(), bytearray()
        while piece := await self.read():
            body += piece
        answer.body = bytes(body)
        return answer
