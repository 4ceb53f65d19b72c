"""Parts: what a checkpoint is a list of, by name (model, optimizer, seeds, metrics, ledger, and whatever comes later).

Owns the two types; runs anywhere. A snapshot is taken on the trainer's thread between two calls, and does not change
until it is released.

On disk a part is `<name>.safetensors` where it has arrays and `<name>.json` where it has facts, so a name is plain:
lower case letters, digits, `-` and `_`. A part that has neither is an empty `<name>.json`: it was there.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy.typing as npt

Array = npt.NDArray[Any]
_NAME = re.compile(r"[a-z][a-z0-9_-]{0,63}")
_TAKEN = frozenset({"manifest"})


def _nothing() -> None:
    pass


@dataclass(frozen=True, slots=True, kw_only=True)
class PartState:
    """All that one part needs to be as it was."""

    arrays: Mapping[str, Array] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)
    """Whatever JSON can hold; keys are text."""
    release: Callable[[], None] = _nothing
    """Whoever is through with a snapshot may say so, once: its memory then serves the next one."""


class Part(Protocol):
    """Something whose state belongs to the model's, and is saved and brought back together with it."""

    @property
    def name(self) -> str:
        """What its files are called; the same in every version to come."""
        ...

    def snapshot(self) -> PartState:
        """Give its state as of now, between two calls."""
        ...

    def restore(self, state: PartState) -> None:
        """Be as it was. Raises, unchanged, where the state does not fit."""
        ...


def checked_name(name: str) -> str:
    """Give the name back if a part may bear it."""
    if not _NAME.fullmatch(name) or name in _TAKEN:
        raise ValueError(f"{name!r} cannot name a part; use lower case letters, digits, - and _, as in `optimizer`")
    return name
