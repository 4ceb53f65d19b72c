"""What `config show` and everything else that tells of settings may say.

Our own settings name files of secrets, never secrets; what a user passes to the model is theirs, and is judged by name.
"""

import re
from collections.abc import Mapping
from typing import Any

MASK = "********"
_SECRET = re.compile(r"(?i)(password|passwd|secret|token|credential|api_?key|private_?key)(?!.*_(file|dir)$)")


def masked(values: Any, name: str = "") -> Any:
    """Return a copy in which every value is masked whose key, or a key above it, names a secret."""
    if _SECRET.search(name) and values is not None:
        return MASK
    if isinstance(values, Mapping):
        return {key: masked(value, str(key)) for key, value in values.items()}
    if isinstance(values, list | tuple):
        return [masked(value) for value in values]
    return values
