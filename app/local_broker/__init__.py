"""A real Apache Kafka on this machine, without Java or Docker: see `app.local_broker.server`."""

from app.local_broker.errors import (
    DownloadError,
    ExtraMissingError,
    FolderInUseError,
    LocalBrokerError,
    PortTakenError,
)
from app.local_broker.server import DEFAULT_FOLDER, LocalBroker

__all__ = [
    "DEFAULT_FOLDER",
    "DownloadError",
    "ExtraMissingError",
    "FolderInUseError",
    "LocalBroker",
    "LocalBrokerError",
    "PortTakenError",
]
