"""The lobby: all members go at the same time, nobody goes before all are there, and each knows who is missing."""

import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress

import pytest

from millrace.app.tools.local_broker.broker import free_port
from millrace.training.errors import GroupError
from millrace.training.group.lobby import _Room, wait_for_all
from millrace.training.group.membership import Membership

WITHIN_S = 20.0


class StoppedError(Exception):
    """Ends a wait."""


class Waiting:
    """A member on a thread of its own."""

    def __init__(self, membership: Membership) -> None:
        self.missing: Sequence[int] = ()
        self.stop = False
        self.went = False
        self._thread = threading.Thread(target=self._wait, args=(membership,), daemon=True)
        self._thread.start()

    def end(self) -> bool:
        """Wait for the end; return whether the member went with all."""
        self._thread.join(WITHIN_S)
        assert not self._thread.is_alive()
        return self.went

    def _look(self, missing: Sequence[int]) -> None:
        if self.stop:
            raise StoppedError
        self.missing = tuple(missing)

    def _wait(self, membership: Membership) -> None:
        try:
            wait_for_all(membership, self._look)
        except StoppedError:
            return
        self.went = True


Make = Callable[[int], Waiting]


@contextmanager
def lobby(workers: int) -> Iterator[tuple[Make, tuple[str, int]]]:
    """Make members of one group; those that still wait at the end are stopped."""
    port = free_port()
    addresses = [f"127.0.0.1:{port}", *(f"127.0.0.1:{free_port()}" for _ in range(workers - 1))]
    made: list[Waiting] = []

    def make(index: int) -> Waiting:
        made.append(Waiting(Membership(index=index, addresses=addresses, timeout_s=5.0)))
        return made[-1]

    yield make, ("127.0.0.1", port)
    for one in made:
        one.stop = True
        one.end()


def until(condition: Callable[[], object]) -> None:
    """Wait for a condition."""
    deadline = time.monotonic() + WITHIN_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.parametrize("first", [0, 1])
def test_all_go_when_the_last_has_come_whoever_came_first(first: int) -> None:
    with lobby(3) as (make, _):
        members = [make(index) for index in (first, 1 - first)]
        until(lambda: all(one.missing == (2,) for one in members))
        assert not any(one.went for one in members)
        members.append(make(2))
        assert all(one.end() for one in members)


@pytest.mark.parametrize("index", [0, 1])
def test_a_port_that_another_program_has_taken_is_named_before_anybody_is_waited_for(index: int) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        addresses = [f"127.0.0.1:{free_port()}"] * index + [f"127.0.0.1:{port}", f"127.0.0.1:{free_port()}"]
        looked = list[object]()
        with pytest.raises(GroupError, match=f"cannot listen on port {port} .* in use; end what listens there, or"):
            wait_for_all(Membership(index=index, addresses=addresses, timeout_s=5.0), looked.append)
    assert looked == []


def test_without_a_chief_the_chief_is_missing() -> None:
    with lobby(2) as (make, _):
        until(lambda: make(1).missing == (0,))


def test_a_member_that_has_gone_is_missing_again() -> None:
    with lobby(3) as (make, _):
        chief, worker = make(0), make(1)
        until(lambda: chief.missing == (2,))
        worker.stop = True
        assert not worker.end()
        until(lambda: chief.missing == (1, 2))
        assert all(one.end() for one in (chief, make(1), make(2)))


@pytest.mark.parametrize(
    "said", [b"PRI * HTTP/2.0\r\n\r\n", b"millrace member 7\n", b"millrace member 0\n", b"x" * 9000]
)
def test_a_stranger_at_the_port_is_nobody(said: bytes) -> None:
    with lobby(2) as (make, place):
        chief = make(0)
        until(lambda: chief.missing == (1,))
        with socket.create_connection(place, 5) as stranger:
            stranger.sendall(said)
            stranger.settimeout(5)
            with suppress(ConnectionResetError):
                assert stranger.recv(1) == b""
        assert chief.missing == (1,)
        assert all(one.end() for one in (make(1), chief))


def test_a_member_that_comes_again_as_its_connection_before_ends_is_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with ExitStack() as opened:
        listener = opened.enter_context(socket.create_server(("127.0.0.1", 0)))
        room = _Room(listener, workers=3)
        opened.callback(room.close)
        before, now = (opened.enter_context(socket.create_connection(listener.getsockname(), 5)) for _ in range(2))
        for _ in range(2):
            room.look(WITHIN_S)
        before.sendall(b"millrace member 1\n")
        room.look(WITHIN_S)
        assert room.missing() == (2,)
        # Both are in one look, the newer one first: the older one is dropped before it is heard.
        served = {connection.getpeername(): connection for connection in room._heard}
        selected = [(room._selector.get_key(served[one.getsockname()]), 1) for one in (now, before)]
        now.sendall(b"millrace member 1\n")
        before.close()
        monkeypatch.setattr(room._selector, "select", lambda _seconds: selected)
        room.look(0.1)
        assert room.missing() == (2,)


def test_a_stop_ends_the_wait_of_the_chief_and_of_a_worker() -> None:
    with lobby(3) as (make, _):
        members = [make(0), make(1)]
        until(lambda: all(one.missing == (2,) for one in members))
        for one in members:
            one.stop = True
        assert not any(one.end() for one in members)


def test_the_port_is_free_for_the_meeting_when_all_have_gone() -> None:
    with lobby(2) as (make, place):
        assert all(one.end() for one in (make(0), make(1)))
        socket.create_server(place).close()
