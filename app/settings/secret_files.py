"""Secrets: read from the file that a setting names, which others should not read, and masked where settings are shown.

Our own settings name files of secrets, never secrets; what a user passes to the model is theirs, and is judged by name.
"""

import os
import re
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import SecretStr

from millrace.consumers.errors import ConfigError

MASK = "********"
_SECRET = re.compile(r"(?i)(password|passwd|secret|token|credential|api_?key|private_?key)(?!.*_(file|dir|endpoint)$)")


def read_secret(key: str, path: Path | None) -> SecretStr | None:
    """Read a secret's file; errors name the setting and the file, never its content."""
    if path is None:
        return None
    try:
        secret = path.read_text("utf-8").rstrip("\r\n")
    except UnicodeDecodeError:
        raise ConfigError(f"{key}: {path} is not UTF-8 text; write the secret alone into it") from None
    except OSError as error:
        raise ConfigError(f"{key}: {path} cannot be read: {why_unread(error)}; put the secret there") from None
    if not secret:
        raise ConfigError(f"{key}: {path} is empty; write the secret into it")
    return SecretStr(secret)


def why_unread(error: OSError) -> str:
    """Return why a file cannot be read, for a sentence."""
    return (error.strerror or "it cannot be opened").lower()


def names_secret(name: str) -> bool:
    """Return whether what bears this name is a secret."""
    return bool(_SECRET.search(name))


def masked(values: Any, name: str = "") -> Any:
    """Return a copy in which every value is masked whose key, or a key above it, names a secret."""
    if names_secret(name) and values is not None:
        return MASK
    if isinstance(values, Mapping):
        return {key: masked(value, str(key)) for key, value in values.items()}
    if isinstance(values, list | tuple):
        return [masked(value) for value in values]
    return values


def exposure(path: Path) -> str | None:
    """Return the complaint about a secret's file that every user of this machine can read; None where none is due.

    The file is the one that a symbolic link leads to. A file counts as private below a folder that shuts others out,
    and on a read-only mount: Kubernetes mounts Secrets so, and only the pod sees them.
    """
    try:
        real = path.resolve(strict=True)
        if not real.stat().st_mode & stat.S_IROTH or os.statvfs(real).f_flag & os.ST_RDONLY:
            return None
        if not all(folder.stat().st_mode & stat.S_IXOTH for folder in real.parents):
            return None
    except OSError:
        return None  # whoever reads it says why it cannot be read
    return f"every user of this machine can read {path}; make it private: chmod 600 {path}"
