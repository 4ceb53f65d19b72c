"""Which versions of a model are announced on which topic: a small file beside the versions, replaced in one step.

    announced.json    {"format": 1, "topic": "models", "versions": [37, 42]}

Owns `<export.path>/<name>/announced.json`. A version is added after its record is acknowledged, so that what a crash
has cut off is announced again. A file of another topic, or one that cannot be read, says that nothing is announced.
"""

import json
from collections.abc import Collection
from pathlib import Path

from millrace.consumers.durable_files import replace_durably

FILE_NAME = "announced.json"
_FORMAT = 1
_LARGEST = 1024 * 1024


def announced_versions(root: Path, topic: str) -> set[int]:
    """Return the numbers of the versions below a model's folder that are announced on this topic."""
    try:
        with (root / FILE_NAME).open("rb") as file:
            body = json.loads(file.read(_LARGEST))
    except (OSError, ValueError, RecursionError):
        return set()
    if not isinstance(body, dict) or body.get("topic") != topic or not isinstance(body.get("versions"), list):
        return set()
    return {one for one in body["versions"] if isinstance(one, int) and not isinstance(one, bool)}


def write_announced(root: Path, topic: str, versions: Collection[int]) -> None:
    """Replace what is announced; return when it is durable. Raises OSError where it cannot be written."""
    body = {"format": _FORMAT, "topic": topic, "versions": sorted(versions)}
    replace_durably(root / FILE_NAME, (json.dumps(body) + "\n").encode())
