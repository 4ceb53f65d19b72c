"""The fields of a part of an answer, whether it is a shape or a room's figures."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, get_type_hints

from pydantic import BaseModel

from millrace.consumers.metric import PartFigures


def fields_of(shape: type[BaseModel | PartFigures]) -> Mapping[str, Any]:
    """Return the type of each field, by its name."""
    if issubclass(shape, BaseModel):
        return {name: field.annotation for name, field in shape.model_fields.items()}
    types = get_type_hints(shape, include_extras=True)
    return {field.name: types[field.name] for field in fields(shape)}  # type: ignore[arg-type]  # each is a dataclass
