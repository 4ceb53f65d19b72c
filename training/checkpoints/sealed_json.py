"""Sealed documents: JSON that carries its own SHA-256, so that a flipped bit in it is found.

Owns the form of manifests and of the records of terms; pure. The seal is the SHA-256 of the document without
it, in canonical JSON (sorted keys, no spaces, ASCII). This holds in every version of the format, so that a reader can
tell a damaged document from one that a later version wrote. On disk a document is indented, for people.
"""

import hashlib
import json
from collections.abc import Mapping
from typing import Any, NoReturn

SEAL = "sha256"


def canonical(body: Mapping[str, Any]) -> bytes:
    """Return the one spelling of a document that is hashed."""
    return json.dumps(body, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def seal(body: Mapping[str, Any]) -> bytes:
    """Render a document with its seal, as it stands on disk."""
    return _render({**body, SEAL: hashlib.sha256(canonical(body)).hexdigest()})


def unseal(raw: bytes) -> dict[str, Any]:
    """Return the document without its seal, or raise a ValueError that says what is wrong with it."""
    # Python reads NaN and Infinity as numbers, though JSON has neither and `seal` never writes them.
    document = json.loads(raw, parse_constant=_refuse)
    if not isinstance(document, dict):
        raise ValueError("not a JSON object")  # noqa: TRY004 - one kind of error for all that is wrong
    body = {key: value for key, value in document.items() if key != SEAL}
    if document.get(SEAL) != hashlib.sha256(canonical(body)).hexdigest():
        raise ValueError("does not match its own sha256")
    return body


def spelt_as_sealed(raw: bytes) -> bool:
    """Return whether the bytes are spelt as `seal` spells them.

    This finds changes that JSON does not see, such as a lost last line.
    """
    return raw == _render(json.loads(raw))


def _render(document: Mapping[str, Any]) -> bytes:
    return (json.dumps(document, sort_keys=True, indent=1, allow_nan=False) + "\n").encode()


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")
