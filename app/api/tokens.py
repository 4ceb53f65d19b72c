"""Bearer tokens: a folder of files, one a token. A file's name says who orders, and stands in the audit log.

Owns nothing but the folder's path: the folder is read anew for each order, so that a token is changed, added or taken
away without a restart, also where a whole folder is exchanged by a link, as Kubernetes does it. What is kept of a token
while it is compared is its hash. Reads the disk, so it runs off the loop.
"""

import hashlib
import hmac
import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from consumers.errors import ConfigError

log = logging.getLogger(__name__)
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,99}", re.ASCII)
TOKEN = re.compile(r"[A-Za-z0-9._~+/-]+=*", re.ASCII)
"""What a header can carry as one."""
SHORTEST = 16
LONGEST = 4096
_MAKE_ONE = "make one by: openssl rand -hex 32"


@dataclass(frozen=True, slots=True)
class _Found:
    """What lies in the folder."""

    hashes: Mapping[str, bytes]
    """By file name."""
    complaints: tuple[str, ...]
    """Of the files that do not do, none of which counts."""


class Tokens:
    """The folder of tokens."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._complaints: tuple[str, ...] = ()

    @classmethod
    def open(cls, folder: Path) -> "Tokens":
        """The tokens to begin with: ConfigError where the folder, or any file of it, does not do."""
        tokens = cls(folder)
        tokens.owners()
        return tokens

    def owners(self) -> list[str]:
        """Who may order: ConfigError where the folder, or any file of it, does not do."""
        folder = self._folder
        try:
            found = self._read()
        except OSError as error:
            raise ConfigError(
                f"api.tokens_dir: {folder} cannot be read: {_why(error)}; make the folder, with one file a token"
            ) from None
        if found.complaints:
            raise ConfigError(f"api.tokens_dir: {found.complaints[0]}")
        if not found.hashes:
            raise ConfigError(
                f"api.tokens_dir: {folder} holds no token; write one file a token, named after who orders with it "
                f"({_MAKE_ONE})"
            )
        return list(found.hashes)

    def owner(self, token: str) -> str | None:
        """Whose token it is, by the folder as it is now; None for nobody's. OSError where that cannot be read."""
        found = self._read()
        if found.complaints != self._complaints:
            for complaint in found.complaints:
                log.error("api.tokens_dir: %s", complaint)
            self._complaints = found.complaints
        offered, owner = _hash(token), None
        for name, known in found.hashes.items():  # all of them, so that the time tells nothing
            if hmac.compare_digest(offered, known):
                owner = name
        return owner

    def _read(self) -> _Found:
        hashes: dict[str, bytes] = {}
        complaints: list[str] = []
        for path in sorted(self._folder.iterdir()):
            if path.name.startswith(".") or path.is_dir():
                continue
            try:
                hashes[_checked(path)] = _hash(_token_in(path))
            except FileNotFoundError:
                continue  # exchanged this moment
            except OSError as error:
                complaints.append(f"{path} cannot be read: {_why(error)}")
            except ValueError as error:
                complaints.append(str(error))
        return _Found(hashes, tuple(complaints))


def _checked(path: Path) -> str:
    """The file's name, if it may stand in a log."""
    if not _NAME.fullmatch(path.name):
        raise ValueError(
            f"{path} is no name to order under; call the file by letters, digits, dot, dash, @, underscore"
        )
    return path.name


def _token_in(path: Path) -> str:
    """The file's token. No error repeats any of it."""
    if not path.exists():
        raise FileNotFoundError
    if not path.is_file():
        raise ValueError(f"{path} is no file; write one file a token")
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
    """Of one length, whatever the token's: comparing takes as long for each."""
    return hashlib.sha256(token.encode()).digest()


def _why(error: OSError) -> str:
    return (error.strerror or "it cannot be opened").lower()
