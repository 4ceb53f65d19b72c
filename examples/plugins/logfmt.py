"""A format of records: logfmt, `level=info path=/buy status=200 msg="quoted text"`, one record a line."""

import json
import re
from collections.abc import Mapping
from typing import Any

from millrace.pipelines.formats.row_format import RowFormat

PAIR = re.compile(r'([^\s="]+)=("(?:[^"\\]|\\.)*"|[^\s"]*)(?:\s+|$)')


class LogFmt(RowFormat):
    """Pairs of a key and a value; a value with spaces stands in quotes, and none is a missing one."""

    is_flat = True
    is_text = True

    def read(self, value: bytes) -> Mapping[str, Any]:
        """Return the values by key."""
        text, row, at = value.decode().strip(), dict[str, Any](), 0
        while at < len(text):
            pair = PAIR.match(text, at)
            if pair is None:
                raise ValueError(f"no pair at {at}")
            key, held = pair.groups()
            row[key] = json.loads(held) if held.startswith('"') else held or None
            at = pair.end()
        if not row:
            raise ValueError("no pairs")
        return row

    def write(self, row: Mapping[str, Any]) -> bytes:
        """Return the line of some values."""
        return " ".join(f"{key}={spelled(value)}" for key, value in row.items()).encode()


def spelled(value: Any) -> str:
    """Return a value as a line has it."""
    text = str(value).lower() if isinstance(value, bool) else str(value)
    return text if re.fullmatch(r'[^\s="\\]+', text) else json.dumps(text, ensure_ascii=False)
