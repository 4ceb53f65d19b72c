"""The lobby: where the members wait for each other before TensorFlow's runtime lets them meet.

The runtime waits inside one native call that nothing can interrupt, and does not say who is missing. So all members
connect to the chief here first, on the port on which they meet afterwards, and enter that call at the same time. The
chief tells each second who is missing. A member that has gone before all are there is missing again; one that dies in
the moment between the lobby and the meeting leaves the others in the native call, until their deadline has passed.

Owns the chief's listener and one connection for each member, closed at the end. Runs on the trainer's thread.
"""

import json
import os
import selectors
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial

from millrace.training.errors import GroupError
from millrace.training.group.membership import Membership

Look = Callable[[Sequence[int]], None]
"""Called about once a second with the numbers of those that are missing; ends the wait by raising."""
_HELLO, _GO = b"millrace member ", b"go\n"
_TICK_S = 0.2
_TELL_EVERY_S = 1.0
_SILENT_S = 5.0
"""After this time without a word the chief counts as gone."""
_CONNECT_S = 2.0
_LONGEST_LINE = 4096
_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})


def wait_for_all(membership: Membership, look: Look) -> None:
    """Return when all members are there, at the same time on all of them."""
    if membership.is_chief:
        _receive_all(membership, look)
        return
    # TensorFlow would find it taken in the meeting, where the others wait in vain.
    _listener(*_place(membership.addresses[membership.index]), beside_another=True).close()
    look((0,))
    while not _join_chief(membership, look):
        look((0,))
        time.sleep(_TICK_S)


def _place(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


def _receive_all(membership: Membership, look: Look) -> None:
    """Wait for a connection of each other member, then let all go."""
    with ExitStack() as opened:
        listener = opened.enter_context(_listener(*_place(membership.addresses[0])))
        room = _Room(listener, membership.workers)
        opened.callback(room.close)
        told_at = float("-inf")
        while missing := room.missing():
            room.look(_TICK_S)
            if time.monotonic() - told_at >= _TELL_EVERY_S:
                told_at = time.monotonic()
                look(missing)
                room.tell(json.dumps(list(missing)).encode() + b"\n")
        room.tell(_GO)


def _listener(host: str, port: int, *, beside_another: bool = False) -> socket.socket:
    """Listen where TensorFlow will: on all interfaces, but for a group on one machine.

    With `beside_another` it may share the port with one of TensorFlow's, as that of a process that is just ending.
    """
    listen = partial(socket.create_server, reuse_port=beside_another)
    try:
        if host in _LOOPBACK:
            return listen((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
        if socket.has_dualstack_ipv6():
            return listen(("", port), family=socket.AF_INET6, dualstack_ipv6=True)
        return listen(("", port))
    except OSError as error:
        why = os.strerror(error.errno or 0)  # its own text has the address again
        raise GroupError(
            f"cannot listen on port {port} for the other workers: {why}; end what listens there, or choose another one "
            "by scale.port or scale.addresses"
        ) from error


class _Room:
    """The connections to the chief."""

    def __init__(self, listener: socket.socket, workers: int) -> None:
        self._listener, self._workers = listener, workers
        self._most = 4 * workers + 16
        self._selector = selectors.DefaultSelector()
        self._selector.register(listener, selectors.EVENT_READ)
        self._heard: dict[socket.socket, bytes] = {}
        self._members: dict[int, socket.socket] = {}

    def missing(self) -> tuple[int, ...]:
        """Return the members without a connection."""
        return tuple(number for number in range(1, self._workers) if number not in self._members)

    def look(self, seconds: float) -> None:
        """Take in who comes and who goes."""
        for key, _ in self._selector.select(seconds):
            if key.fileobj is self._listener:
                self._accept()
            elif key.fileobj in self._heard:  # not dropped meanwhile, for another of the same member
                assert isinstance(key.fileobj, socket.socket)
                self._hear(key.fileobj)

    def tell(self, line: bytes) -> None:
        """Send a line to every member; drop those that do not take it."""
        for connection in list(self._members.values()):
            try:
                connection.sendall(line)
            except OSError:
                self._drop(connection)

    def close(self) -> None:
        for connection in list(self._heard):
            self._drop(connection)
        self._selector.close()

    def _accept(self) -> None:
        connection, _ = self._listener.accept()
        connection.settimeout(_CONNECT_S)
        if len(self._heard) >= self._most:
            connection.close()
            return
        self._heard[connection] = b""
        self._selector.register(connection, selectors.EVENT_READ)

    def _hear(self, connection: socket.socket) -> None:
        try:
            received = connection.recv(_LONGEST_LINE)
        except OSError:
            received = b""
        line, ended, _ = (self._heard[connection] + received).partition(b"\n")
        if not received or len(line) > _LONGEST_LINE:
            self._drop(connection)
            return
        self._heard[connection] = line
        if ended:
            self._welcome(connection, line)

    def _welcome(self, connection: socket.socket, line: bytes) -> None:
        number = line.removeprefix(_HELLO)
        if not (line.startswith(_HELLO) and number.isdigit() and 1 <= int(number) < self._workers):
            self._drop(connection)
            return
        if (before := self._members.get(int(number))) is not None and before is not connection:
            self._drop(before)
        self._members[int(number)] = connection

    def _drop(self, connection: socket.socket) -> None:
        self._selector.unregister(connection)
        del self._heard[connection]
        self._members = {number: other for number, other in self._members.items() if other is not connection}
        connection.close()


def _join_chief(membership: Membership, look: Look) -> bool:
    """Connect to the chief and wait for its word; return False where it is not there, or goes."""
    try:
        with socket.create_connection(_place(membership.addresses[0]), _CONNECT_S) as connection:
            connection.sendall(_HELLO + str(membership.index).encode() + b"\n")
            missing = [0]
            for line in _lines(connection, lambda: look(missing)):
                if line == _GO:
                    return True
                missing[:] = _numbers(line)
                look(missing)
    except (OSError, ValueError):
        return False
    return False


def _lines(connection: socket.socket, idle: Callable[[], None]) -> Iterator[bytes]:
    """Yield what the chief says, line by line, until it ends or is silent for too long."""
    connection.settimeout(_TELL_EVERY_S)
    rest, heard_at = b"", time.monotonic()
    while time.monotonic() - heard_at < _SILENT_S and len(rest) <= _LONGEST_LINE:
        try:
            received = connection.recv(_LONGEST_LINE)
        except TimeoutError:
            idle()
            continue
        if not received:
            return
        heard_at = time.monotonic()
        *lines, rest = (rest + received).split(b"\n")
        for line in lines:
            yield line + b"\n"


def _numbers(line: bytes) -> list[int]:
    found = json.loads(line)
    if not isinstance(found, list) or not all(isinstance(number, int) for number in found):
        raise ValueError("this is not the chief of a group")
    return found
