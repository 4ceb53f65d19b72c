"""Bearer tokens: a folder with one file per token. The file's name is that of the owner, and stands in the audit log.

Owns the folder's path alone: the folder is read again for each command, so that tokens can be changed, added or removed
without a restart, also by exchanging a symbolic link, as Kubernetes does. Tokens are compared by their hashes. This
reads the disk, so it runs on a thread.
"""

import hashlib
import hmac
import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from millrace.app.settings.secret_files import exposure, why_unread
from millrace.consumers.errors import ConfigError

log = logging.getLogger(__name__)
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,99}", re.ASCII)
TOKEN = re.compile(r"[A-Za-z0-9._~+/-]+=*", re.ASCII)
"""The characters that a header can carry as a bearer token."""
SHORTEST = 16
LONGEST = 4096
_MAKE_ONE = "make one by: openssl rand -hex 32"


@dataclass(frozen=True, slots=True)
class _Content:
    """The folder's content."""

    hashes: Mapping[str, bytes]
    """By file name."""
    complaints: tuple[str, ...]
    """About files that are not valid tokens, and so are ignored."""


class Tokens:
    """The folder of tokens."""

    def __init__(self, folder: Path, setting: str = "api.tokens_dir") -> None:
        self._folder, self.setting = folder, setting
        self._complaints: tuple[str, ...] = ()

    @classmethod
    def open(cls, folder: Path, setting: str = "api.tokens_dir") -> "Tokens":
        """Return the folder after a check. Raises ConfigError if the folder, or any file in it, is not valid.

        A token that every user of this machine can read is logged as a warning.
        """
        tokens = cls(folder, setting)
        for owner in tokens.owners():
            if (complaint := exposure(folder / owner)) is not None:
                log.warning("%s: %s", setting, complaint)
        return tokens

    def owners(self) -> list[str]:
        """Return the owners' names. Raises ConfigError if the folder, or any file in it, is not valid."""
        folder = self._folder
        try:
            content = self._read()
        except OSError as error:
            raise ConfigError(
                f"{self.setting}: {folder} cannot be read: {why_unread(error)}; make the folder, with one file per "
                "token"
            ) from None
        if content.complaints:
            raise ConfigError(f"{self.setting}: {content.complaints[0]}")
        if not content.hashes:
            raise ConfigError(
                f"{self.setting}: {folder} holds no token; write one file per token, named after its owner "
                f"({_MAKE_ONE})"
            )
        return list(content.hashes)

    def owner(self, token: str) -> str | None:
        """Return the owner of the token, by the folder as it is now, or None. Raises OSError if it cannot be read."""
        content = self._read()
        if content.complaints != self._complaints:
            for complaint in content.complaints:
                log.error("%s: %s", self.setting, complaint)
            self._complaints = content.complaints
        offered, owner = _hash(token), None
        for name, known in content.hashes.items():  # all of them, so that the time taken reveals nothing
            if hmac.compare_digest(offered, known):
                owner = name
        return owner

    def _read(self) -> _Content:
        hashes: dict[str, bytes] = {}
        complaints: list[str] = []
        for path in sorted(self._folder.iterdir()):
            if path.name.startswith(".") or path.is_dir():
                continue
            if not _NAME.fullmatch(path.name):  # it must not stand in a log
                complaints.append(f"{path} is no name of an owner; use letters, digits, dot, dash, @, underscore")
                continue
            try:
                hashes[path.name] = _hash(_token_in(path))
            except FileNotFoundError:
                continue  # removed or exchanged at this moment
            except OSError as error:
                complaints.append(f"{path} cannot be read: {why_unread(error)}")
            except ValueError as error:
                complaints.append(str(error))
        return _Content(hashes, tuple(complaints))


def _token_in(path: Path) -> str:
    """Return the token in the file. Raises ValueError, whose text repeats nothing of the content."""
    if not path.exists():
        raise FileNotFoundError
    if not path.is_file():
        raise ValueError(f"{path} is no file; write one file per token")
    with path.open("rb") as file:
        text = file.read(LONGEST + 3).decode("ascii", "replace").strip()
    if not text:
        raise ValueError(f"{path} is empty; write a token into it ({_MAKE_ONE})")
    if not TOKEN.fullmatch(text):
        raise ValueError(f"{path} holds what no header can carry as a token; {_MAKE_ONE}")
    if not SHORTEST <= len(text) <= LONGEST:
        raise ValueError(f"{path} holds a token of another length than {SHORTEST} to {LONGEST}; {_MAKE_ONE}")
    return text


def _hash(token: str) -> bytes:
    """Return a hash. All have one length, so that a comparison takes the same time for each."""
    return hashlib.sha256(token.encode()).digest()
