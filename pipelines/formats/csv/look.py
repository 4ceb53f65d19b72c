"""Which CSV records hold a text where a number should be: one regular expression for all of a chunk, without the GIL.

Pure functions. What is found are hints: such records are read as texts, and there a text is judged in any case.
"""

import re
from collections.abc import Sequence

import numpy as np

from millrace.consumers.records import Int64s
from millrace.pipelines.formats.csv import CsvField
from millrace.pipelines.formats.shared.pieces import matching

_WHOLE, _NUMBER = r"0-9+\- \t", r"0-9+\- \t.eE"


class CsvLook:
    """What the columns of a row hold, as bytes show it."""

    def __init__(
        self, places: Sequence[CsvField], columns: int, delimiter: str, quote: str | None, lists: str | None
    ) -> None:
        ends = re.escape(delimiter + (quote or ""))
        inside = (
            ""
            if quote is None
            else f"|{re.escape(quote)}(?:[^{re.escape(quote)}]|{re.escape(quote * 2)})*{re.escape(quote)}"
        )
        patterns = [f"(?:[^{ends}]*{inside})"] * columns
        for place in places:
            if place.field.dtype not in {"string", "bool"}:
                codes = (_NUMBER if place.field.dtype.startswith("float") else _WHOLE) + re.escape(lists or "")
                maybe = "" if quote is None else f"{re.escape(quote)}?"
                for column in place.columns:
                    patterns[int(column)] = f"{maybe}[{codes}]*{maybe}"
        self._row = rf"\A{re.escape(delimiter).join(patterns)}\n\z"

    def suspects(self, text: bytes, begins: Int64s) -> Int64s:
        """Return the records that are probably read as texts only, ascending."""
        return np.flatnonzero(~matching(text, begins, self._row))
