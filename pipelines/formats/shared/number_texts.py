"""The texts of CSV columns as numbers, where some texts are not numbers: Arrow's conversion, element by element.

Pure functions of each element's own text. Only Arrow's conversion decides whether a text is a number; the patterns here
only save the separate question for the many texts that clearly are. Both ways to read a column, Arrow's CSV reader by
type and this one, give the same value for a text that both convert.
"""

import re
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millrace.pipelines.formats.shared.arrow_columns import Faults, Show

TRUE, FALSE = ("true", "True", "TRUE", "1"), ("false", "False", "FALSE", "0")
_BLANKS = " \t"
_PLAIN_FLOAT = r"^[+-]?[0-9]{1,19}(\.[0-9]{1,19})?$"
_PLAIN_INTEGER = r"^-?[0-9]{1,18}$"
_INTEGER = r"^-?[0-9]+$"
# `\Z`, as Arrow's patterns have no line end before the end.
_PLAIN_FLOATS, _PLAIN_INTEGERS, _INTEGERS = (
    re.compile(pattern.removesuffix("$") + r"\Z") for pattern in (_PLAIN_FLOAT, _PLAIN_INTEGER, _INTEGER)
)
_PLUS = re.compile(r"^\+(?=[0-9])")
_FEW = 256
"""Texts that are converted by themselves."""


class Converted(NamedTuple):
    """The values of a column: null where the text is empty, any value where it is wrong."""

    values: pa.Array
    wrong: Faults | None
    """The fault of each text that does not convert; None where all convert."""


def converted(words: pa.Array, arrow: pa.DataType) -> Converted:
    """Convert texts, null where the column is empty, to values of a type. Blanks around a number are ignored."""
    if pa.types.is_binary(arrow):
        return Converted(words, None)
    if len(words) <= _FEW and not pa.types.is_boolean(arrow):
        return _few(words, arrow)
    # The CSV reader ignores these blanks, and a cast refuses them.
    text = pc.utf8_trim(words.cast(pa.string()), _BLANKS)
    text = pc.if_else(pc.equal(pc.binary_length(text), 0), pa.scalar(None, pa.string()), text)
    if pa.types.is_integer(arrow):
        # Arrow converts a plus sign before a float, and refuses it before an integer.
        text = pc.replace_substring_regex(text, r"^\+([0-9])", r"\1")
    if pa.types.is_boolean(arrow):
        known = pc.is_in(text, value_set=pa.array([*TRUE, *FALSE, None], pa.string()))
        values = pc.if_else(pc.is_valid(text), pc.is_in(text, value_set=pa.array(TRUE)), pa.scalar(None, pa.bool_()))
        return Converted(values, _wrong(pc.invert(known), text))
    try:
        return Converted(text.cast(arrow), None)
    except pa.ArrowInvalid:
        return _sifted(text, arrow)


def _few(words: pa.Array, arrow: pa.DataType) -> Converted:
    """Convert as few texts as Python looks through faster than Arrow begins: by the same rules."""
    texts = [word and (word if isinstance(word, str) else word.decode()).strip(_BLANKS) for word in words.to_pylist()]
    plain = _PLAIN_FLOATS
    if pa.types.is_integer(arrow):
        plain = _PLAIN_INTEGERS
        texts = [text and _PLUS.sub("", text) for text in texts]
    doubtful = {text for text in texts if text and not plain.match(text)}
    refused = {text for text in doubtful if not _converts(pa.scalar(text), arrow)}
    values = pa.array([text if text not in refused else "0" for text in (text or None for text in texts)], pa.string())
    faults = [_fault_of(text) if text in refused else Show.GOOD for text in texts] if refused else None
    return Converted(values.cast(arrow), None if faults is None else np.array(faults, np.uint8))


def _fault_of(text: str | None) -> Show:
    return Show.OUT_OF_RANGE if text and _INTEGERS.match(text) else Show.WRONG_TYPE


def _sifted(text: pa.Array, arrow: pa.DataType) -> Converted:
    """Convert the texts that convert: the plain ones are certain, of the others each distinct text is tried."""
    plain = pc.match_substring_regex(text, _PLAIN_FLOAT if pa.types.is_floating(arrow) else _PLAIN_INTEGER)
    doubtful = pc.invert(pc.fill_null(plain, True))  # noqa: FBT003 - Arrow takes it by place
    refused = [word for word in pc.unique(text.filter(doubtful)) if not _converts(word, arrow)]
    bad = pc.and_(doubtful, pc.is_in(text, value_set=pa.array(refused, pa.string())))
    values = pc.if_else(bad, pa.scalar("0", pa.string()), text).cast(arrow)
    return Converted(values, _wrong(bad, text))


def _converts(word: pa.StringScalar, arrow: pa.DataType) -> bool:
    try:
        word.cast(arrow)
    except pa.ArrowInvalid:
        return False
    return True


def _wrong(bad: pa.Array, text: pa.Array) -> Faults | None:
    places = bad.to_numpy(zero_copy_only=False)
    if not places.any():
        return None
    too_large = pc.fill_null(pc.match_substring_regex(text, _INTEGER), False).to_numpy(zero_copy_only=False)  # noqa: FBT003 - Arrow takes it by place
    reasons = np.where(too_large, np.uint8(Show.OUT_OF_RANGE), np.uint8(Show.WRONG_TYPE))
    return np.where(places, reasons, np.uint8(Show.GOOD))
