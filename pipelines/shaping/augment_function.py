"""What the user's `augment` asks for, known without TensorFlow, so that its file is checked before that."""

import inspect
from collections.abc import Callable
from typing import Any

Augment = Callable[..., Any]
SEED = "seed"


def takes_seed(augment: Augment) -> bool:
    """Return whether the function has a parameter of the name `seed`."""
    try:
        return SEED in inspect.signature(augment).parameters
    except ValueError:
        return False  # a callable that does not tell its signature
