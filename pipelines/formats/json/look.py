"""Which JSON records the parser probably refuses: one regular expression for all of a chunk, which needs no GIL.

Pure functions. The text is not parsed: a colon behind the name of a field is taken to be where its value begins, also
in a string. So what is found are hints, and a record in an unusual form is not seen.
"""

import re
from collections.abc import Iterable, Iterator, Mapping

import numpy as np

from millrace.consumers.records import Int64s
from millrace.pipelines.formats.shared.paths import AskedField
from millrace.pipelines.formats.shared.pieces import matching, not_utf8

_NUMBER, _TEXT, _BOOL, _LIST, _RECORD = "-0-9NI", '"', "tf", r"\[", "{"
_NO_WHOLE = r"|-?[0-9]+[.eE]|-?[0-9]{20}"
"""A fraction, an exponent, or more digits than the parser takes."""
_ANYWHERE = (r"[\x00-\x09\x0b-\x1f]", r"\n.", r"\}\s*\{")
"""Control characters, of which a newline ends each record, and an object behind an object."""


class JsonLook:
    """What a schema asks for, as a look at bytes can find it."""

    def __init__(self, asked: Mapping[str, AskedField]) -> None:
        nodes: dict[str, list[AskedField]] = {}
        for name, node in _all_nodes(asked.items()):
            nodes.setdefault(name, []).append(node)
        names: dict[str, list[str]] = {}
        for name, alike in nodes.items():
            names.setdefault(_unlike(alike), []).append(re.escape(name))
        wrong = (rf'"(?:{"|".join(alike)})"\s*:\s*(?:{unlike})' for unlike, alike in names.items())
        self.pattern = "(?s)" + "|".join((*_ANYWHERE, *wrong))


def suspects_of(text: bytes, begins: Int64s, look: JsonLook) -> list[int]:
    """Return the records that the parser probably refuses, ascending."""
    found = np.flatnonzero(matching(text, begins, look.pattern)).tolist()
    return found if text.isascii() else sorted({*found, *not_utf8(text, begins)})


def _all_nodes(members: Iterable[tuple[str, AskedField]]) -> Iterator[tuple[str, AskedField]]:
    for name, node in members:
        yield name, node
        yield from _all_nodes(node.members.items())


def _unlike(nodes: Iterable[AskedField]) -> str:
    """Return a pattern of what the value of a name begins with where it is of no type that is asked for."""
    begins = "".join(sorted({_first_bytes(node) for node in nodes}))
    whole = all(
        node.leaf is not None and not node.lists and node.leaf.dtype.startswith(("int", "uint")) for node in nodes
    )
    return rf"[^{begins}n\s]" + _NO_WHOLE * whole


def _first_bytes(node: AskedField) -> str:
    if node.lists:
        return _LIST
    if node.leaf is None:
        return _RECORD
    return {"string": _TEXT, "bool": _BOOL}.get(node.leaf.dtype, _NUMBER)
