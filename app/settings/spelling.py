"""How keys and values are spelled in errors, in the environment, in `config show` and in the reference."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from millrace.app.settings.yaml_file import Key

PREFIX = "MILLRACE_"
DELIMITER = "__"
_PLAIN = re.compile(r"(?![.-]*\d|[.-][\d_.]*([eE][-+]?\d+)?$)[A-Za-z_./-][\w./:+-]*(?<!:)")
_WORDS = {"null", "true", "false", "~", "", "-", ".nan", ".inf", "-.inf"}


def dotted(key: Key) -> str:
    """Return a key as `kafka.topics[0]`."""
    text = ""
    for part in key:
        text += f"[{part}]" if isinstance(part, int) else f".{part}"
    return text.lstrip(".")


def variable(key: Key) -> str:
    """Return a key as `MILLRACE_KAFKA__TOPICS`."""
    return PREFIX + DELIMITER.join(map(str, key)).upper()


def flow(value: Any) -> str:
    """Return a value as YAML on one line."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{flow(str(key))}: {flow(item)}" for key, item in value.items()) + "}"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return "[" + ", ".join(flow(item) for item in value) + "]"
    if isinstance(value, str):
        plain = _PLAIN.fullmatch(value) or _is_quantity(value)
        return value if plain and value.lower() not in _WORDS else json.dumps(value, ensure_ascii=False)
    return json.dumps(value)


def _is_quantity(text: str) -> bool:
    return re.fullmatch(r"-?\d+(\.\d+)?( ?[A-Za-z]{1,5}|%)", text) is not None and not re.fullmatch(r"\S*\dE\d*", text)
