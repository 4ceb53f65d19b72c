"""What a version takes and gives: its signatures, and which of its inputs are one feature. Pure.

A feature is an input of the signature, or two of them: a list of varying length goes in as `<name>_values` and
`<name>_row_splits`. A request may send it as rows of lists; the manifest says which features there are.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

VALUES, SPLITS = "_values", "_row_splits"
DEFAULT = "serving_default"
Shape = tuple[int | None, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorFacts:
    """One input or output of a signature."""

    dtype: str
    """NumPy's name of it, or `string`."""
    shape: Shape | None
    """None where the rank is not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Signature:
    """One function of a version."""

    name: str
    inputs: Mapping[str, TensorFacts]
    outputs: Mapping[str, TensorFacts]
    ragged: frozenset[str] = frozenset()
    """Features that go in as values and row splits."""
    classes: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """By feature, the texts that it may be."""

    @property
    def features(self) -> Mapping[str, TensorFacts]:
        """What a row may hold, by name. Of a ragged feature these are the facts of its values."""
        found = {}
        for name, facts in self.inputs.items():
            if (feature := name.removesuffix(VALUES)) in self.ragged and feature != name:
                found[feature] = facts
            elif name.removesuffix(SPLITS) not in self.ragged or name.removesuffix(SPLITS) == name:
                found[name] = facts
        return found

    @property
    def joins(self) -> bool:
        """Whether rows of several requests may be answered by one call: rows come first in all that goes in and out."""
        given = [facts.shape for name, facts in self.inputs.items() if not name.endswith(VALUES)]
        return all(shape is not None and shape and shape[0] is None for shape in [*given, *self._given_back()])

    def _given_back(self) -> list[Shape | None]:
        return [facts.shape for facts in self.outputs.values()]


def ragged_features(
    manifest_inputs: Mapping[str, Mapping[str, Any]], inputs: Mapping[str, TensorFacts]
) -> frozenset[str]:
    """Return the features of a manifest that go in as two tensors, both of which the signature has."""
    return frozenset(
        name
        for name, about in manifest_inputs.items()
        if about.get("ragged") and {name + VALUES, name + SPLITS} <= inputs.keys()
    )


def described(facts: TensorFacts) -> str:
    """Return a tensor's type as messages have it: `float32 of shape [?, 16]`, and `text` for one text a row."""
    dtype = "text" if facts.dtype == "string" else facts.dtype
    if facts.shape is None or (dtype == "text" and len(facts.shape) == 1):
        return dtype
    return f"{dtype} of shape [{', '.join('?' if size is None else str(size) for size in facts.shape)}]"
