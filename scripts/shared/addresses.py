"""Ports of 127.0.0.1: those that a gateway says it listens on, and those that a program holds.

No program here looks for a free port and hopes that it stays free. Servers bind port 0 and say what
they got. Where a server must come back on its port, or none may be there, the port is held.
"""

import re
import socket
import time

HELD = []


def held_ports(count):
    """Ports that the kernel gives to no other program until this one ends.

    Their sockets are bound and never listen, so connections are refused. With SO_REUSEADDR on both
    sides, as servers set it, a server that is told the port can listen on it, end, and come back.
    """
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        each.bind(("127.0.0.1", 0))
    HELD.extend(sockets)
    return [each.getsockname()[1] for each in sockets]


def listening_ports(process, log, seconds=30):
    """The ports of a gateway's listeners, in the order of its file, once it has said that it is ready.

    Nothing if it ends before that, or does not start in time. `log` is what it writes to stderr.
    """
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        said = log.read_text(errors="replace")
        if re.search(r" ready$", said, re.M):
            return [int(port) for port in re.findall(r" listening on \S+:(\d+)$", said, re.M)]
        if process.poll() is not None:
            return []
        time.sleep(0.02)
    return []
