"""grpcio: all four kinds of calls, metadata, statuses, deadlines and cancellation, through the gateway."""

import hashlib
import json
import os
import queue
import time
import uuid
from contextlib import contextmanager

import grpc
from grpc import StatusCode

from kit import Failed, check, equal, eventually, expect

# In clear all the way, and over TLS all the way.
WAYS = {"h2c": ("plain", "test.Service"), "TLS": ("tls", "test.Secure")}
MESSAGES = [b"%d" % number * 10 for number in range(1000)]


@contextmanager
def stub(lab, way, service=None):
    """`stub("Method", kind)` is a callable of grpcio for that method."""
    listener, usual = WAYS[way]
    with connect(lab, lab.ports[listener], tls=listener == "tls") as channel:
        yield lambda method, kind="unary_unary": getattr(channel, kind)(f"/{service or usual}/{method}")


def connect(lab, port, tls):
    options = [("grpc.max_receive_message_length", -1), ("grpc.use_local_subchannel_pool", 1)]
    if not tls:
        return grpc.insecure_channel(f"127.0.0.1:{port}", options)
    options.append(("grpc.ssl_target_name_override", "localhost"))
    credentials = grpc.ssl_channel_credentials((lab.folder / "ca.pem").read_bytes())
    return grpc.secure_channel(f"127.0.0.1:{port}", credentials, options)


def failure(call, *arguments, **options):
    """The error that a call must end with."""
    try:
        list(call(*arguments, **{"timeout": 10, **options}))
    except grpc.RpcError as error:
        return error
    raise Failed("the call succeeded")


def everything_told(call):
    """Metadata of the head and the trailers: a refusal may have both in one."""
    return dict([*(call.initial_metadata() or ()), *(call.trailing_metadata() or ())])


@check(over=WAYS)
def a_unary_call_is_answered(lab, way):
    with stub(lab, way) as method:
        equal("the answer", method("Unary")(b"hello", timeout=10), b"hello")
        equal("the empty answer", method("Unary")(b"", timeout=10), b"")


@check(over=["h2c to TLS", "TLS to h2c"])
def tls_may_end_at_the_gateway_or_begin_there(lab, way):
    caller, service = ("h2c", "test.Secure") if way == "h2c to TLS" else ("TLS", "test.Service")
    with stub(lab, caller, service) as method:
        equal("the answer", method("Unary")(b"hello", timeout=10), b"hello")


@check(over=WAYS)
def a_thousand_messages_go_up(lab, way):
    with stub(lab, way) as method:
        answer = json.loads(method("Collect", "stream_unary")(iter(MESSAGES), timeout=20))
    equal("count and hash", answer, [1000, hashlib.sha256(b"".join(MESSAGES)).hexdigest()])


@check(over=WAYS)
def a_thousand_messages_come_down(lab, way):
    with stub(lab, way) as method:
        numbers = list(method("Count", "unary_stream")(b"1000", timeout=20))
    equal("the messages", numbers, [b"%d" % number for number in range(1000)])


@check(over=WAYS)
def a_thousand_messages_go_both_ways(lab, way):
    with stub(lab, way) as method:
        equal("the messages", list(method("Chat", "stream_stream")(iter(MESSAGES), timeout=20)), MESSAGES)


@check(over=WAYS)
def a_message_is_passed_on_before_the_next_is_sent(lab, way):
    answers = queue.Queue()

    def one_after_the_other():
        for message in MESSAGES:
            yield message
            equal("the answer", answers.get(timeout=5), message)

    with stub(lab, way) as method:
        for answer in method("Chat", "stream_stream")(one_after_the_other(), timeout=30):
            answers.put(answer)


@check(over=WAYS)
def metadata_passes_both_ways(lab, way):
    sent = [("x-text", "some text"), ("x-twice", "1"), ("x-twice", "2"), ("x-bytes-bin", bytes(range(256)))]
    with stub(lab, way) as method:
        _, call = method("Unary").with_call(b"", metadata=sent, timeout=10)
        initial = [pair for pair in map(tuple, call.initial_metadata()) if pair[0].startswith("x-")]
        trailing = dict(call.trailing_metadata())
    equal("what is missing", [pair for pair in [*sent, ("x-initial", "first")] if pair not in initial], [])
    equal("the order of values", [value for name, value in initial if name == "x-twice"], ["1", "2"])
    equal("the trailing text", trailing.get("x-trailing"), "last")
    equal("the trailing bytes", trailing.get("x-trailing-bin"), bytes(range(256)))


@check(over=WAYS)
def four_mebibytes_in_a_message(lab, way):
    message = os.urandom(4 << 20)
    with stub(lab, way) as method:
        expect(method("Unary")(message, timeout=20) == message, "another message came back")


@check(over=WAYS)
def compressed_messages_pass(lab, way):
    message = b"again and " * 50_000
    with stub(lab, way) as method:
        answer = method("Unary")(message, timeout=20, compression=grpc.Compression.Gzip)
    expect(answer == message, "another message came back")


@check(over=WAYS)
def two_hundred_calls_at_once(lab, way):
    with stub(lab, way) as method:
        calls = [method("Unary").future(b"%d" % number, timeout=20) for number in range(200)]
        equal("the answers", [call.result() for call in calls], [b"%d" % number for number in range(200)])


@check(over=WAYS)
def an_error_passes_with_its_details_and_metadata(lab, way):
    with stub(lab, way) as method:
        is_the_backends_error(failure(method("Fail"), b""))


@check(over=WAYS)
def an_error_after_some_messages_passes(lab, way):
    with stub(lab, way) as method:
        call = method("CountAndFail", "unary_stream")(b"3", timeout=10)
        seen = []
        try:
            for message in call:
                seen.append(message)
        except grpc.RpcError as error:
            is_the_backends_error(error)
        equal("the messages before it", seen, [b"0", b"1", b"2"])
        equal("the status", call.code(), StatusCode.FAILED_PRECONDITION)


def is_the_backends_error(error):
    equal("the status", error.code(), StatusCode.FAILED_PRECONDITION)
    equal("the details", error.details(), "not in this état: 100%\n")
    metadata = dict(error.trailing_metadata())
    equal("its metadata", (metadata.get("x-reason"), metadata.get("x-reason-bin")), ("because", b"\0\xff"))


@check(over=WAYS)
def a_cancelled_call_is_cancelled_at_the_backend(lab, way):
    name = str(uuid.uuid4())
    with stub(lab, way) as method:
        call = method("Slow").future(name.encode(), timeout=15)
        eventually("the call reaches the backend", lambda: seen_by_backend(lab, name))
        call.cancel()
        # The channel stays open: it must be the stream that is reset.
        eventually("the backend notices", lambda: seen_by_backend(lab, name)["state"] == "cancelled", 3)


@check(over=WAYS)
def a_deadline_holds_for_caller_and_backend(lab, way):
    name = str(uuid.uuid4())
    with stub(lab, way) as method:
        began = time.monotonic()
        error = failure(method("Slow"), name.encode(), timeout=0.7)
        took = time.monotonic() - began
        equal("the status", error.code(), StatusCode.DEADLINE_EXCEEDED)
        expect(0.6 < took < 1.5, f"it took {took:.2f} s")
        call = eventually("the backend notices", lambda: cancelled(lab, name), 3)
    expect(call["remaining"] and call["remaining"] < 0.75, f"the backend was told {call['remaining']} s")


def seen_by_backend(lab, name):
    """What the backend says of a slow call, asked without the gateway."""
    with connect(lab, lab.ports["grpc"], tls=False) as channel:
        return json.loads(channel.unary_unary("/test.Service/Seen")(name.encode(), timeout=5))


def cancelled(lab, name):
    call = seen_by_backend(lab, name)
    return call if call and call["state"] == "cancelled" else None


@check(over=WAYS)
def a_reject_is_resource_exhausted(lab, way):
    caller = [("x-test", str(uuid.uuid4()))]
    with stub(lab, way, "test.Limited") as method:
        method("Unary")(b"", metadata=caller, timeout=10)
        error = failure(method("Unary"), b"", metadata=caller)
        equal("the status", error.code(), StatusCode.RESOURCE_EXHAUSTED)
        expect("retry-after" in everything_told(error), f"it tells {everything_told(error)}")
        streaming = failure(method("Chat", "stream_stream"), iter(MESSAGES), metadata=caller)
        equal("the status of a stream", streaming.code(), StatusCode.RESOURCE_EXHAUSTED)


@check(over=WAYS)
def a_service_nobody_routes_is_unimplemented(lab, way):
    with stub(lab, way, "test.Nobody") as method:
        equal("the status", failure(method("Unary"), b"").code(), StatusCode.UNIMPLEMENTED)


@check(over=WAYS)
def a_method_the_backend_lacks_is_unimplemented(lab, way):
    with stub(lab, way) as method:
        equal("the status", failure(method("Nothing"), b"").code(), StatusCode.UNIMPLEMENTED)


@check(over=WAYS)
def a_backend_that_is_gone_is_unavailable(lab, way):
    with stub(lab, way, "test.Gone") as method:
        equal("the status", failure(method("Unary"), b"").code(), StatusCode.UNAVAILABLE)
