"""The senders: each an extra that tells a server of others how the service does.

A sender owns a thread of its own. The training never waits for it and calls nothing of it: once a second the HTTP
side's loop has it look at what the service posts anyway. It ends with the HTTP side.
"""

from collections.abc import Callable, Iterable
from typing import ClassVar, Protocol

from prometheus_client.core import Metric as Family

from millrace.app.service.mlflow.mlflow import Mlflow
from millrace.app.service.otlp.otlp import Otlp
from millrace.app.service.sending import Readiness
from millrace.app.settings import Settings
from millrace.consumers.metric import PartFigures
from millrace.training.telemetry.meter import Meter
from millrace.training.trainer.board import Board


class Sender(Protocol):
    """Sends to one server."""

    name: ClassVar[str]
    """How `millrace validate` calls it."""

    def __init__(self, settings: Callable[[], Settings], meter: Meter, board: Board) -> None:
        """Take what a service posts; its settings name a server, and `ready` did not raise."""

    @classmethod
    def ready(cls, settings: Settings) -> Readiness | None:
        """Return what would be sent where; None where no server is named.

        Raise ConfigError if the extra is missing, or a file cannot be used.
        """

    def figures(self) -> PartFigures:
        """Return what was sent."""

    def look(self, collect: Callable[[], Iterable[Family]]) -> None:
        """Take what is due; `collect` gives the metrics. Called once a second, and never waits."""

    def stop(self, collect: Callable[[], Iterable[Family]]) -> None:
        """Have what is left sent, within two seconds."""


SENDERS: tuple[type[Sender], ...] = (Otlp, Mlflow)


def senders_of(settings: Callable[[], Settings], meter: Meter, board: Board) -> tuple[Sender, ...]:
    """Return the senders whose servers the settings name. Raises as `ready` does."""
    return tuple(sender(settings, meter, board) for sender in SENDERS if sender.ready(settings()) is not None)
