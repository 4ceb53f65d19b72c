"""A broker that may be harmed, with two ways to it: straight, and through a proxy.

Each way is a listener of its own, because a client goes wherever the broker says that it is: what connects to the
proxy's port is told the proxy's port again.
"""

from contextlib import ExitStack
from pathlib import Path
from typing import Self

from millrace.app.tools.local_broker import LocalBroker
from millrace.app.tools.local_broker.broker import HOST, free_port
from tests.faults.harness.proxy import Proxy


class Station:
    """The broker and the proxy before it. A context manager."""

    def __init__(self, folder: Path) -> None:
        self.proxy = Proxy()
        self._folder = folder
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            stack.enter_context(self.proxy)
            straight, behind = free_port(), free_port()
            self.proxy.forward_to(behind)
            self.broker = LocalBroker(
                self._folder, port=straight, settings=_listeners(straight, behind, self.proxy.port)
            )
            stack.enter_context(self.broker)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_raised: object) -> None:
        self._stack.close()

    @property
    def straight(self) -> str:
        """The broker's own address."""
        return self.broker.bootstrap_servers

    @property
    def proxied(self) -> str:
        """The proxy's address: whoever connects there never leaves it."""
        return f"{HOST}:{self.proxy.port}"

    def make_whole(self) -> None:
        """Undo whatever a test that failed has left."""
        self.proxy.pass_on()
        if not self.broker.running():
            self.broker.start()


def _listeners(straight: int, behind: int, proxy: int) -> dict[str, str]:
    controller = free_port()
    return {
        "listeners": f"PLAINTEXT://{HOST}:{straight},PROXIED://{HOST}:{behind},CONTROLLER://{HOST}:{controller}",
        "advertised.listeners": f"PLAINTEXT://{HOST}:{straight},PROXIED://{HOST}:{proxy}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,PROXIED:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "controller.quorum.voters": f"1@{HOST}:{controller}",
    }
