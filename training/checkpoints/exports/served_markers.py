"""Markers of what is served: a small file a server, beside the versions, that keeps the exporter from pruning them.

    served/<server>.json    {"format": 1, "versions": [42], "until": seconds since 1970}

Owns `<export.path>/<name>/served`. A server writes its own marker durably before it loads a version, and again long
before it ends; nobody removes one that has not ended. So a server that was killed keeps its versions until `until`, and
finds them when it is started again. Any thread; never TensorFlow.
"""

import contextlib
import json
import math
import re
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from millrace.consumers.durable_files import replace_durably, sync_folder

FOLDER_NAME = "served"
KEPT_S = 3600.0
"""How long a marker holds: a restart, or a new node for a pod, takes less."""
RENEWED_AFTER_S = 600.0
_FORMAT = 1
_SERVER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}", re.ASCII)
_LARGEST = 64 * 1024


def mark_served(root: Path, server: str, versions: Iterable[int], now: float | None = None) -> None:
    """Keep these versions below the model's folder from being pruned, for an hour. Raises OSError where it cannot.

    It replaces what this server has marked before, and removes markers that ended more than an hour ago.
    """
    if not _SERVER.fullmatch(server):
        raise ValueError(f"{server!r} is no name of a server")
    moment, folder = time.time() if now is None else now, root / FOLDER_NAME
    if not folder.is_dir():
        folder.mkdir(exist_ok=True)
        sync_folder(root)
    body = {"format": _FORMAT, "versions": sorted(set(versions)), "until": moment + KEPT_S}
    replace_durably(folder / f"{server}.json", (json.dumps(body) + "\n").encode())
    for path in folder.glob("*.json"):
        # One that cannot be read as a marker never ends, and is left alone.
        if (body := _read(path)) and moment - _end_of(body) > KEPT_S:
            path.unlink(missing_ok=True)


def served_versions(root: Path, now: float | None = None) -> set[int]:
    """Return the numbers that some server of this model's folder serves, or has served within the hour."""
    moment = time.time() if now is None else now
    found: set[int] = set()
    with contextlib.suppress(FileNotFoundError):
        for path in (root / FOLDER_NAME).iterdir():
            # Hidden ones are half written.
            if path.suffix == ".json" and not path.name.startswith("."):
                found |= _versions(path, moment)
    return found


def _versions(path: Path, moment: float) -> set[int]:
    body = _read(path)
    versions = body.get("versions")
    if not isinstance(versions, list) or _end_of(body) < moment:
        return set()
    return {number for number in versions if isinstance(number, int) and not isinstance(number, bool)}


def _end_of(body: dict[str, Any]) -> float:
    until = body.get("until")
    return float(until) if isinstance(until, int | float) else -math.inf


def _read(path: Path) -> dict[str, Any]:
    """Return what a marker says; nothing where it is gone, or no marker."""
    try:
        with path.open("rb") as file:
            body = json.loads(file.read(_LARGEST))
    except (OSError, ValueError, RecursionError):
        return {}
    return body if isinstance(body, dict) else {}
