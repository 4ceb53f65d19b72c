"""Lists in lists, as a config has them. Pure."""

from typing import Any


def depth(value: Any) -> int:
    """Return how many lists lie in each other, by the first element of each."""
    return 1 + (depth(value[0]) if value else 0) if isinstance(value, list) else 0
