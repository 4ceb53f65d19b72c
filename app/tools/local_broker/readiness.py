"""Checks whether a Kafka on a port is ready, and which cluster it is.

One Metadata request, version 2, over a plain socket: it costs a millisecond, needs no event loop and logs nothing while
there is no answer. Runs on the caller's thread and returns within its timeout.
"""

import socket
import struct

_TIMEOUT_S = 2.0
_METADATA, _VERSION, _CORRELATION = 3, 2, 1
_NO_CLIENT_ID = -1
_NO_TOPICS = 0
_REQUEST = struct.pack(">hhihi", _METADATA, _VERSION, _CORRELATION, _NO_CLIENT_ID, _NO_TOPICS)


def ready_cluster(host: str, port: int) -> str | None:
    """Return the id of the cluster that answers with a broker ready to serve; None where none does yet."""
    try:
        with socket.create_connection((host, port), timeout=_TIMEOUT_S) as connection:
            connection.sendall(struct.pack(">i", len(_REQUEST)) + _REQUEST)
            (size,) = struct.unpack(">i", _receive(connection, 4))
            return _cluster_id(_receive(connection, size))
    except (OSError, struct.error, UnicodeDecodeError):  # no program answers, or one that does not speak Kafka
        return None


def _receive(connection: socket.socket, size: int) -> bytes:
    received = b""
    while len(received) < size:
        part = connection.recv(size - len(received))
        if not part:
            raise ConnectionResetError("the answer ended early")
        received += part
    return received


def _cluster_id(answer: bytes) -> str | None:
    _, brokers = struct.unpack_from(">ii", answer)
    at = 8
    for _ in range(brokers):
        at = _after_text(answer, at + 4)  # its number, then its host
        at = _after_text(answer, at + 4)  # its port, then its rack
    (length,) = struct.unpack_from(">h", answer, at)
    return answer[at + 2 : at + 2 + length].decode() if brokers > 0 and length > 0 else None


def _after_text(answer: bytes, at: int) -> int:
    length: int = struct.unpack_from(">h", answer, at)[0]
    return at + 2 + max(length, 0)
