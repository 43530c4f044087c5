"""curl: both versions of HTTP, TLS, rejects, the PROXY protocol, and bodies that take their time."""

import hashlib
import json
import os
import socket
import statistics
import struct
import subprocess
import time
import uuid

from kit import H1, H1_TLS, H2_TLS, H2C, WAYS, check, curl, curl_command, equal, eventually, expect, fetch, started

EVERY_WAY = list(WAYS)
TLS = {"TLS 1.2": "1.2", "TLS 1.3": "1.3"}


@check(over=EVERY_WAY)
def a_request_is_forwarded(lab, way):
    answer = fetch(lab, way, "/echo/a?b=c", "-H", "X-Mine: 1", "-d", "hello")
    equal("the method", answer.json["method"], "POST")
    equal("the path", answer.json["path"], "/echo/a?b=c")
    equal("X-Mine", answer.backend_header("x-mine"), ["1"])
    equal("the body's hash", answer.json["sha256"], hashlib.sha256(b"hello").hexdigest())
    equal("X-Forwarded-Proto", answer.backend_header("x-forwarded-proto"), ["https" if "TLS" in way else "http"])
    host = lab.url(WAYS[way][0]).split("/")[2]
    equal("Host", answer.backend_header("host"), [host])


@check(over=EVERY_WAY)
def a_head_request_has_no_body(lab, way):
    answer = fetch(lab, way, "/download", "-I")
    equal("content-length", answer.headers.get("content-length"), str(20 << 20))


@check(over=EVERY_WAY)
def an_unknown_path_is_404(lab, way):
    fetch(lab, way, "/nowhere", status=404)


@check()
def an_offer_to_upgrade_to_h2c_is_left_alone(lab):
    answer = curl(lab, lab.url("plain") + "/echo", "--http2")
    equal("the answer", (answer.status, answer.version), (200, "1.1"))


@check(over=TLS)
def http_is_spoken(lab, version):
    options = [f"--tlsv{TLS[version]}", "--tls-max", TLS[version]]
    fetch(lab, H1_TLS, "/echo", *options)
    fetch(lab, H2_TLS, "/echo", *options)


@check()
def the_certificate_fits_the_name_that_was_asked_for(lab):
    for name in ("localhost", "api.example.test"):
        answer = curl(lab, f"https://{name}:{lab.ports['tls']}/echo")
        expect(answer.status == 200, f"{name}: {answer.error}")


@check()
def a_wildcard_does_not_cover_two_labels(lab):
    answer = curl(lab, f"https://www.api.example.test:{lab.ports['tls']}/echo")
    expect(answer.exit in (35, 60), f"curl ended with {answer.exit}, status {answer.status}")


@check(over=TLS)
def a_known_client_certificate_is_let_in(lab, version):
    known = ["--cert", lab.folder / "known.pem", "--key", lab.folder / "known.key", "--tls-max", TLS[version]]
    answer = curl(lab, lab.url("mtls") + "/echo", *known)
    expect(answer.status == 200, f"status {answer.status}: {answer.error}")


@check(over=TLS)
def an_unknown_client_certificate_is_refused(lab, version):
    unknown = ["--cert", lab.folder / "unknown.pem", "--key", lab.folder / "unknown.key"]
    for options in (unknown, []):
        answer = curl(lab, lab.url("mtls") + "/echo", "--tls-max", TLS[version], *options)
        # What curl calls it depends on when it learns of it: in the handshake, or as it writes or reads.
        expect(answer.exit in (16, 35, 55, 56, 98) and answer.status == 0,
               f"{options and 'an unknown' or 'no'} certificate: status {answer.status}, {answer.error}")


@check(over=EVERY_WAY)
def a_reject_is_a_429_without_a_body(lab, way):
    caller = ["-H", f"X-Test: {uuid.uuid4()}"]
    allowed = fetch(lab, way, "/limited", *caller)
    equal("x-ratelimit-remaining", allowed.headers.get("x-ratelimit-remaining"), "0")
    rejected = fetch(lab, way, "/limited", *caller, status=429)
    equal("the body", rejected.body, b"")
    equal("x-ratelimit-limit", rejected.headers.get("x-ratelimit-limit"), "1")
    equal("x-ratelimit-remaining", rejected.headers.get("x-ratelimit-remaining"), "0")
    expect(int(rejected.headers.get("x-ratelimit-reset", 0)) > time.time(), "x-ratelimit-reset is over")
    expect(3500 < int(rejected.headers.get("retry-after", 0)) < 4000, f"headers are {rejected.headers}")


# --- the PROXY protocol --------------------------------------------------------------------------


@check(over=[H1, H2C])
def a_proxy_header_is_understood(lab, way):
    answer = curl(lab, lab.url("proxied") + "/echo", "--haproxy-protocol", *WAYS[way][2])
    expect(answer.status == 200, f"status {answer.status}: {answer.error}")
    equal("X-Forwarded-For", answer.backend_header("x-forwarded-for"), ["127.0.0.1"])


@check()
def the_caller_is_who_the_proxy_header_says(lab):
    signature = b"\r\n\r\n\0\r\nQUIT\n"
    ports = struct.pack("!HH", 1111, 80)
    v4 = socket.inet_aton("203.0.113.7") + socket.inet_aton("127.0.0.1") + ports
    v6 = socket.inet_pton(socket.AF_INET6, "2001:db8::7") + bytes(15) + b"\1" + ports
    tlv = b"\x04\x00\x03abc"
    headers = {
        b"PROXY TCP4 203.0.113.7 127.0.0.1 1111 80\r\n": "203.0.113.7",
        b"PROXY TCP6 2001:db8::7 ::1 1111 80\r\n": "2001:db8::7",
        b"PROXY UNKNOWN\r\n": "127.0.0.1",
        signature + b"\x21\x11" + struct.pack("!H", len(v4)) + v4: "203.0.113.7",
        signature + b"\x21\x11" + struct.pack("!H", len(v4 + tlv)) + v4 + tlv: "203.0.113.7",
        signature + b"\x21\x21" + struct.pack("!H", len(v6)) + v6: "2001:db8::7",
        signature + b"\x20\x00\x00\x00": "127.0.0.1",
    }
    for header, caller in headers.items():
        told = raw(lab, header + b"GET /echo HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
        head, _, body = told.partition(b"\r\n\r\n")
        expect(head.startswith(b"HTTP/1.1 200"), f"after {header!r}: {head!r}")
        seen = [value for name, value in json.loads(body)["headers"] if name.lower() == "x-forwarded-for"]
        equal(f"X-Forwarded-For after {header!r}", seen, [caller])


@check()
def a_request_without_a_proxy_header_is_refused_where_one_is_due(lab):
    answer = curl(lab, lab.url("proxied") + "/echo")
    expect(answer.status in (0, 400), f"status {answer.status}")


def raw(lab, request):
    """Sends bytes to the listener that expects a PROXY header; returns all that comes back."""
    with socket.create_connection(("127.0.0.1", lab.ports["proxied"]), 5) as connection:
        connection.sendall(request)
        return b"".join(iter(lambda: connection.recv(1 << 16), b""))


# --- answers and bodies that take their time -----------------------------------------------------


@check(over=EVERY_WAY)
def early_hints_are_passed_on(lab, way):
    answer = fetch(lab, way, "/early")
    hints = [headers.get("link") for status, headers in answer.interim if status == 103]
    equal("the hints", hints, ["</style.css>; rel=preload; as=style"])
    equal("the answer", answer.json, {"late": True})


@check(over=EVERY_WAY)
def events_arrive_as_they_are_sent(lab, way):
    listener, _, how = WAYS[way]
    with started(curl_command(lab, lab.url(listener) + "/sse", "-N", *how), stdout=subprocess.PIPE) as events:
        delays = [time.time() - float(line.split()[1]) for line in events.stdout if line.startswith(b"data:")]
        equal("curl's exit code", events.wait(), 0)
    equal("the number of events", len(delays), 10)
    # One that is held back until the next would be 100 ms late; a busy machine delays only some.
    expect(statistics.median(delays) < 0.06 and max(delays) < 0.5,
           f"they came {[round(delay, 3) for delay in delays]} s late")


@check(over=EVERY_WAY)
def trailers_are_passed_on(lab, way):
    answer = fetch(lab, way, "/trailers", "-H", "TE: trailers")
    equal("the body", answer.body, b"with trailers")
    equal("the trailer", answer.trailers.get("x-checksum"), hashlib.sha256(answer.body).hexdigest())


@check(over=EVERY_WAY)
def twenty_mebibytes_go_up(lab, way):
    answer = upload(lab, way)
    equal("content-length", answer.backend_header("content-length"), [str(20 << 20)])


@check(over=EVERY_WAY)
def twenty_mebibytes_of_unknown_length_go_up(lab, way):
    unknown = "Transfer-Encoding: chunked" if WAYS[way][1] == "1.1" else "Content-Length:"
    answer = upload(lab, way, "-H", unknown)
    equal("content-length", answer.backend_header("content-length"), [])


def upload(lab, way, *options):
    file = lab.folder / "upload"
    file.write_bytes(body := os.urandom(20 << 20))
    answer = fetch(lab, way, "/upload", "--data-binary", f"@{file}", *options)
    seen = answer.json["length"], answer.json["sha256"]
    equal("length and hash", seen, (len(body), hashlib.sha256(body).hexdigest()))
    return answer


@check(over=[H1, H1_TLS])
def a_body_beyond_the_largest_is_413(lab, way):
    """Over HTTP/2, curl 7.88 fails on any answer that is only a head and comes before its upload ended."""
    file = lab.folder / "upload"
    file.write_bytes(bytes(11 << 20))
    fetch(lab, way, "/echo", "--data-binary", f"@{file}", status=413)


@check(over=EVERY_WAY)
def twenty_mebibytes_come_down(lab, way):
    equal("the length", len(body := fetch(lab, way, "/download").body), 20 << 20)
    expect(body == bytes(range(256)) * 4096 * 20, "the body is not what was sent")


@check(over=EVERY_WAY)
def a_long_poll_is_answered_when_something_happens(lab, way):
    listener, _, how = WAYS[way]
    path = f"/longpoll?id={uuid.uuid4()}"
    with started(curl_command(lab, lab.url(listener) + path, *how), stdout=subprocess.PIPE) as poll:
        # Nothing is to happen for a while.
        time.sleep(0.7)
        expect(poll.poll() is None, "the poll was answered before anything happened")
        happened = time.monotonic()
        fetch(lab, way, path, "-d", "news")
        equal("what the poll got", poll.communicate()[0], b"news")
        expect(time.monotonic() - happened < 0.5, "the poll was answered late")


@check(over=EVERY_WAY)
def the_backend_notices_a_caller_who_leaves(lab, way):
    listener, _, how = WAYS[way]
    call = str(uuid.uuid4())
    seen = lambda: curl(lab, f"http://127.0.0.1:{lab.ports['app']}/slow?seen={call}").json["state"]
    with started(curl_command(lab, f"{lab.url(listener)}/slow?id={call}", *how)):
        eventually("the call reaches the backend", lambda: seen() == "started")
    eventually("the backend notices", lambda: seen() == "left")
