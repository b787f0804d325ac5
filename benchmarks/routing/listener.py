"""Hears when messages are marked as seen, which happens in the step that acknowledges them.

    python listener.py SOCKET N

A process of its own, so that nothing but the server's word is waited for. The server tells by a keyspace
notification, sent together with its answer to the router. Prints `ready`, then a line for each of N messages:
its id, and the nanoseconds of the monotonic clock at which it was heard of.
"""

from __future__ import annotations

import re
import socket
import sys
import time

#: Seconds without a word from the server after which it gives up.
_PATIENCE_S = 60
_SEEN = re.compile(rb":seen:([0-9a-f-]{36}):[0-9a-f]+\r\n\$3\r\nset\r\n")


def listen(path: str, count: int) -> dict[bytes, int]:
    """The moment at which each message was heard of."""
    heard: dict[bytes, int] = {}
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as server:
        server.settimeout(_PATIENCE_S)
        server.connect(path)
        server.sendall(b"CONFIG SET notify-keyspace-events K$\r\nPSUBSCRIBE __keyspace@0__:*:seen:*\r\n")
        rest = b""
        ready = False
        while len(heard) < count:
            rest += server.recv(65_536)
            now = time.monotonic_ns()
            if not ready and b"psubscribe" in rest:
                ready = True
                sys.stdout.write("ready\n")
                sys.stdout.flush()
            end = 0
            for found in _SEEN.finditer(rest):
                heard.setdefault(found[1], now)
                end = found.end()
            rest = rest[end:]
    return heard


if __name__ == "__main__":
    for message_id, at in listen(sys.argv[1], int(sys.argv[2])).items():
        sys.stdout.write(f"{message_id.decode()} {at}\n")
