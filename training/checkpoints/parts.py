"""Parts: what a checkpoint consists of, by name (model, optimizer, seeds, metrics, ledger, and further ones later).

Owns the two types; runs on any thread. A snapshot is taken on the trainer's thread between two calls, and does not
change until it is released.

On disk a part is `<name>.safetensors` where it has arrays and `<name>.json` where it has facts, so a name is plain:
lower case letters, digits, `-` and `_`. A part that has neither is an empty `<name>.json`, so that it exists.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy.typing as npt

Array = npt.NDArray[Any]
_NAME = re.compile(r"[a-z][a-z0-9_-]{0,63}")
_TAKEN = frozenset({"manifest"})


@dataclass(frozen=True, slots=True, kw_only=True)
class PartState:
    """The whole state of one part."""

    arrays: Mapping[str, Array] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)
    """Whatever JSON can hold; keys are text."""
    release: Callable[[], None] = lambda: None
    """Hand the snapshot's memory to the next one. To be called at most once, when the snapshot is no longer needed."""


class Part(Protocol):
    """A holder of state that is saved and restored together with the model."""

    @property
    def name(self) -> str:
        """The name of its files; it must stay the same in every later version."""
        ...

    def snapshot(self) -> PartState:
        """Return its present state; called between two calls."""
        ...

    def restore(self, state: PartState) -> None:
        """Take a saved state. Raises, without any change, where the state does not fit."""
        ...


def checked_name(name: str) -> str:
    """Return the name if a part may have it; ValueError otherwise."""
    if not _NAME.fullmatch(name) or name in _TAKEN:
        raise ValueError(f"{name!r} cannot name a part; use lower case letters, digits, - and _, as in `optimizer`")
    return name
