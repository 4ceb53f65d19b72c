"""Texts of errors as people read them. Pure; runs anywhere."""

import re

_ADDRESS = re.compile(r"\(['\"]([^'\"]*)['\"], (\d+), <AddressFamily\.\w+: \d+>\)")
_CLAUSE_ENDS = re.compile(r"; |\. |: (?=\w+-?\w*\.sh\b)")


def text_of(error: BaseException) -> str:
    """Return what a library raised in one line: its type once, and addresses as `host:port`.

    aiokafka's errors have their type in their text, and may show addresses as Python writes them.
    """
    name = type(error).__name__
    text = _ADDRESS.sub(r"\1:\2", " ".join(str(error).split()))
    if not text:
        return name
    return text if name in text else f"{name}: {text}"


def first_clause(text: str) -> str:
    """Return what an error says is wrong, without what it says to do about it."""
    return _CLAUSE_ENDS.split(text, maxsplit=1)[0].rstrip(".;: ")
