"""What a version takes and gives, and JSON values as tensors and back, by the rules of TF Serving. Pure; NumPy alone.

A feature is an input of the signature, or two of them: a list of varying length goes in as `<name>_values` and
`<name>_row_splits`. A request may send it as rows of lists; the manifest says which features there are.

A tensor is nested lists; bytes are `{"b64": "…"}`; NaN, Infinity and -Infinity are numbers. What is refused names the
place, what stands there, and what the model takes.
"""

import base64
import binascii
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]
Where = Callable[[Sequence[int]], str]
"""Names the place of a value by its indices."""
VALUES, SPLITS = "_values", "_row_splits"
DEFAULT = "serving_default"
Shape = tuple[int | None, ...]
BASE64 = "b64"
_BYTES = "_bytes"
_QUOTED = 60
_INFINITE = frozenset({float("inf"), float("-inf")})
_KINDS = {dict: "an object", list: "a list", str: "a text", bool: "true or false", type(None): "null"}
_NUMBERS = {int: "a whole number", float: "a number"}


class ServingError(Exception):
    """An error that ends a request, `{"error": "…"}` in TF Serving's form: what is wrong, and what to do."""

    def __init__(self, status: int, text: str, headers: Mapping[str, str] | None = None, **facts: Any) -> None:
        """Take the facts, too, that stand beside the text for programs."""
        super().__init__(text)
        self.status, self.text, self.headers, self.facts = status, text, dict(headers or {}), facts


def bad_request(text: str) -> ServingError:
    """Return the error of a request that could never be answered."""
    return ServingError(400, text)


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorFacts:
    """One input or output of a signature."""

    dtype: str
    """NumPy's name of it, or `string`."""
    shape: Shape | None
    """None if the rank is not known."""


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
        shapes = [*given, *(facts.shape for facts in self.outputs.values())]
        return all(shape is not None and shape and shape[0] is None for shape in shapes)


def described(facts: TensorFacts) -> str:
    """Return a tensor's type as messages have it: `float32 of shape [?, 16]`, and `text` for one text a row."""
    dtype = "text" if facts.dtype == "string" else facts.dtype
    if facts.shape is None or (dtype == "text" and len(facts.shape) == 1):
        return dtype
    return f"{dtype} of shape [{', '.join('?' if size is None else str(size) for size in facts.shape)}]"


def read_tensor(value: Any, facts: TensorFacts, where: Where) -> Array:
    """Return a JSON value as the tensor that the facts describe. Raises ServingError (400) with the place at fault."""
    shape, leaves = _flattened(value, where)
    if shape and 0 in shape and facts.shape is not None and len(shape) < len(facts.shape):
        shape = (*shape, *(size or 0 for size in facts.shape[len(shape) :]))  # an empty list does not tell its rank

    def place(index: int) -> str:
        return where([int(each) for each in np.unravel_index(index, shape)]) if shape else where(())

    _require_shape(shape, facts, where)
    return _typed(leaves, facts.dtype, place).reshape(shape)


def written(array: Array, name: str) -> Any:
    """Return a tensor as JSON writes it: nested lists of plain values, floats in their shortest exact form."""
    if array.dtype.kind in "OSU":
        return _texts(array.tolist(), as_bytes=name.endswith(_BYTES))
    if array.dtype.kind == "f" and array.dtype.itemsize < 8:
        # Through text: a float32 of 0.2 is 0.2 for whoever reads it, and not 0.20000000298023224.
        return array.astype(np.float32).astype(str).astype(np.float64).tolist()
    return array.tolist()


def _flattened(value: Any, where: Where) -> tuple[tuple[int, ...], list[Any]]:
    """Return the shape by the first value on each level, and all leaves in order."""
    shape: list[int] = []
    level = [value]
    while level and type(level[0]) is list:
        size = len(level[0])
        for index, each in enumerate(level):
            if type(each) is not list or len(each) != size:
                place = where([int(at) for at in np.unravel_index(index, shape)] if shape else ())
                found = f"a list of {len(each)}" if type(each) is list else _kind_of(each)
                raise bad_request(f"{place} is {found}, and its neighbours are lists of {size}")
        shape.append(size)
        level = list(chain.from_iterable(level))
    return tuple(shape), level


def _require_shape(shape: tuple[int, ...], facts: TensorFacts, where: Where) -> None:
    if facts.shape is None:
        return
    fits = len(shape) == len(facts.shape) and all(
        takes in {None, has} for takes, has in zip(facts.shape, shape, strict=True)
    )
    if not fits:
        takes = ", ".join("?" if size is None else str(size) for size in facts.shape)
        has = ", ".join(map(str, shape))
        dtype = "text" if facts.dtype == "string" else facts.dtype
        raise bad_request(f"{where(())} has the shape [{has}], and the model takes {dtype} of shape [{takes}]")


def _typed(leaves: list[Any], dtype: str, place: Callable[[int], str]) -> Array:
    if dtype == "string":
        texts = np.empty(len(leaves), object)
        for index, leaf in enumerate(leaves):
            texts[index] = bytes_of(leaf, index, place)
        return texts
    takes: tuple[type, ...] = {"b": (bool,), "i": (int,), "u": (int,), "f": (int, float)}.get(np.dtype(dtype).kind, ())
    wrong = next((index for index, leaf in enumerate(leaves) if type(leaf) not in takes), None)
    if wrong is not None:
        raise bad_request(f"{place(wrong)} is {_kind_of(leaves[wrong])}, and the model takes {dtype}")
    try:
        with np.errstate(over="ignore"):
            array = np.array(leaves, np.dtype(dtype))
    except OverflowError:
        array = None
    if array is None:
        is_float = np.dtype(dtype).kind == "f"
        low = float(np.finfo(dtype).min) if is_float else int(np.iinfo(dtype).min)
        high = float(np.finfo(dtype).max) if is_float else int(np.iinfo(dtype).max)
        beyond = [at for at, leaf in enumerate(leaves) if leaf not in _INFINITE and not low <= leaf <= high]
    elif array.dtype.kind == "f":
        beyond = [int(at) for at in np.flatnonzero(np.isinf(array)) if leaves[at] not in _INFINITE]
    else:
        beyond = []
    if array is None or beyond:
        raise bad_request(f"{place(beyond[0] if beyond else 0)} is too large or too small for {dtype}")
    return array


def bytes_of(leaf: Any, index: int, place: Callable[[int], str]) -> bytes:
    """Return a text, or Base64 in an object, as bytes. Raises ServingError (400) for anything else."""
    if isinstance(leaf, str):
        try:
            return leaf.encode()
        except UnicodeEncodeError:
            raise bad_request(f'{place(index)} is no UTF-8; send bytes as {{"{BASE64}": "…"}}') from None
    if isinstance(leaf, dict) and leaf.keys() == {BASE64} and isinstance(leaf[BASE64], str):
        try:
            return base64.b64decode(leaf[BASE64], validate=True)
        except (binascii.Error, ValueError):
            raise bad_request(f"{place(index)} holds no Base64 under {BASE64}") from None
    raise bad_request(
        f'{place(index)} is {_kind_of(leaf)}, and the model takes a text, or bytes as {{"{BASE64}": "…"}}'
    )


def _kind_of(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if type(value) in _NUMBERS:
        return f"{_NUMBERS[type(value)]}, {value!r}"[:_QUOTED]
    return _KINDS.get(type(value), "something else")


def _texts(value: Any, *, as_bytes: bool) -> Any:
    if isinstance(value, list):
        return [_texts(each, as_bytes=as_bytes) for each in value]
    raw = value if isinstance(value, bytes) else str(value).encode()
    if not as_bytes:
        try:
            return raw.decode()
        except UnicodeDecodeError:
            pass
    return {BASE64: base64.b64encode(raw).decode()}
