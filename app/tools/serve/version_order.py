"""The order which version answers, kept on disk, so that a restart obeys it too.

    order.json    {"format": 1, "version": 42 or "latest", "by", "at", "setting": what serve.version was then}

Owns that one file, which is replaced in one durable step; several servers may share it. An order holds until
`serve.version` is another one than it was: who changes the config means it. Runs on the follower's thread.
"""

import json
import logging
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from millrace.consumers.durable_files import replace_durably
from millrace.consumers.errors import ConfigError

log = logging.getLogger(__name__)
Wanted = int | Literal["latest"]
_FILE = "order.json"
_FORMAT = 1
_LARGEST = 64 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionOrder:
    """Which version answers, by whose order."""

    version: Wanted
    by: str
    at: str
    """ISO 8601, UTC."""
    setting: Wanted
    """What serve.version was when it was given."""


class OrderFile:
    """The order of one server, or of those that share the folder."""

    def __init__(self, folder: Path, setting: Wanted) -> None:
        self._path, self._setting = folder / _FILE, setting
        self._complaint: str | None = None

    def wanted(self) -> Wanted:
        """Return the version to answer with, by the order or else by the setting."""
        order = self.read()
        return self._setting if order is None else order.version

    def read(self) -> VersionOrder | None:
        """Return the order in force, or None. What cannot be read is logged once, and is no order."""
        try:
            order = _parsed(self._path)
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            self._complain(f"{self._path} cannot be read as an order ({error}); serve.version decides meanwhile")
            return None
        if order is not None and order.setting != self._setting:
            self._complain(
                f"serve.version is {self._setting} and was {order.setting} when {order.by} ordered {order.version}; "
                "the setting decides"
            )
            return None
        self._complaint = None
        return order

    def give(self, version: Wanted, by: str) -> VersionOrder:
        """Write an order durably. Raises ConfigError where the folder cannot be written."""
        at = datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
        order = VersionOrder(version=version, by=by, at=at, setting=self._setting)
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            replace_durably(self._path, (json.dumps({"format": _FORMAT, **asdict(order)}) + "\n").encode())
        except OSError as error:
            raise ConfigError(
                f"serve.path: cannot write {self._path}: {error.strerror}; make it a folder that this user may write "
                "to, or name another one"
            ) from error
        return order

    def _complain(self, text: str) -> None:
        if text != self._complaint:
            log.warning("%s", text)
        self._complaint = text


def _parsed(path: Path) -> VersionOrder | None:
    try:
        with path.open("rb") as file:
            body = json.loads(file.read(_LARGEST))
    except FileNotFoundError:
        return None
    if body["format"] != _FORMAT:
        raise ValueError(f"it has the format {body['format']}, and this millrace reads {_FORMAT}")
    return VersionOrder(
        version=_wanted(body["version"]), by=str(body["by"]), at=str(body["at"]), setting=_wanted(body["setting"])
    )


def _wanted(value: object) -> Wanted:
    if value == "latest":
        return "latest"
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    raise ValueError(f"{value!r} is no version")
