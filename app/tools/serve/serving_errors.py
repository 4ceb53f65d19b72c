"""Why a request to the server of predictions is not answered, in TF Serving's form: `{"error": "…"}`. Pure."""

from collections.abc import Mapping
from typing import Any


class ServingError(Exception):
    """An error that ends a request: what is wrong, and what to do."""

    def __init__(self, status: int, text: str, headers: Mapping[str, str] | None = None, **facts: Any) -> None:
        """Take the facts, too, that stand beside the text for programs."""
        super().__init__(text)
        self.status, self.text, self.headers, self.facts = status, text, dict(headers or {}), facts


def bad_request(text: str) -> ServingError:
    """Return the error of a request that could never be answered."""
    return ServingError(400, text)


def unknown_servable(asked: str, name: str, rest: str) -> ServingError:
    """Return TF Serving's error for a model or version that is not there, and what there is."""
    return ServingError(404, f"Servable not found for request: {asked}({name}{rest})")
