"""openssl s_client: what is agreed on in the handshake, which chain is shown, and resumption."""

import re

from kit import check, equal, expect, output

REQUEST = "GET /echo HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"


def s_client(lab, *options, name="localhost"):
    """One connection, with a request over it; all that is said."""
    said = output("openssl", "s_client", "-connect", f"127.0.0.1:{lab.ports['tls']}", "-servername", name,
                     "-CAfile", lab.folder / "ca.pem", "-ign_eof", *options, given=REQUEST)
    return said


@check()
def http2_is_chosen_where_it_is_offered(lab):
    said = s_client(lab, "-no_ign_eof", "-alpn", "h2,http/1.1")
    expect("ALPN protocol: h2\n" in said, find(said, r".*ALPN.*"))


@check()
def http1_is_spoken_where_http2_is_not_offered(lab):
    said = s_client(lab, "-alpn", "http/1.1")
    expect("ALPN protocol: http/1.1\n" in said, find(said, r".*ALPN.*"))
    expect("HTTP/1.1 200 OK" in said, "the request was not answered")
    expect("HTTP/1.1 200 OK" in s_client(lab), "a request without ALPN was not answered")


@check()
def the_whole_chain_is_shown_by_name(lab):
    for name, subject in (("localhost", "localhost"), ("api.example.test", "*.example.test")):
        said = s_client(lab, "-showcerts", "-verify_hostname", name, "-verify_return_error", name=name)
        shown = re.findall(r"^ *\d s:CN ?= ?(.*)", said, re.M)
        equal(f"the chain for {name}", shown, [subject, "Test Intermediate"])
        expect("Verify return code: 0 (ok)" in said, find(said, r".*[Vv]erif.*"))


@check(over=["TLS 1.2", "TLS 1.3"])
def a_session_is_resumed(lab, version):
    """On every thread of the gateway: a few times, since a connection may land on any."""
    session = lab.folder / "session"
    for _ in range(6):
        protocol, version_told = f"-tls{version[4:].replace('.', '_')}", f"TLSv{version[4:]}"
        first = s_client(lab, protocol, "-sess_out", session)
        expect(f"New, {version_told}" in first, find(first, r"^(?:New|Reused),.*"))
        second = s_client(lab, protocol, "-sess_in", session)
        expect(f"Reused, {version_told}" in second, find(second, r"^(?:New|Reused),.*"))
        expect("HTTP/1.1 200 OK" in second, "the request over the resumed session was not answered")


def find(said, pattern):
    return " / ".join(re.findall(pattern, said, re.M)) or f"openssl says {said[-300:]!r}"
