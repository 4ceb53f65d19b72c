"""A real Apache Kafka on this machine, without Java or Docker: see `app.tools.local_broker.broker`."""

from millrace.app.tools.local_broker.broker import DEFAULT_FOLDER, LocalBroker
from millrace.app.tools.local_broker.jars import (
    DownloadError,
    ExtraMissingError,
    FolderInUseError,
    LocalBrokerError,
    PortTakenError,
)

__all__ = [
    "DEFAULT_FOLDER",
    "DownloadError",
    "ExtraMissingError",
    "FolderInUseError",
    "LocalBroker",
    "LocalBrokerError",
    "PortTakenError",
]
