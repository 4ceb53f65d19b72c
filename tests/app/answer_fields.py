"""The fields of a part of an answer, whether it is a shape or a room's figures."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Annotated, Any, get_args, get_origin, get_type_hints

from pydantic import BaseModel

from millrace.consumers.metric import PartFigures, Reported


def made_up(kind: type[PartFigures]) -> Reported:
    """Return figures of a kind with a number in each field that may hold one, under a label if there are several."""

    def value(hint: Any) -> Any:
        if get_origin(hint) is Annotated:
            return value(get_args(hint)[0])
        if get_origin(hint) is Mapping:
            return {"one": value(get_args(hint)[1])}
        if get_args(hint):  # a number that may be unknown, or what is left out
            return value(get_args(hint)[0]) if type(None) in get_args(hint) else None
        return hint(3) if hint in (int, float) else None

    made = kind(**{name: value(hint) for name, hint in fields_of(kind).items()})
    return {"one": made} if kind.per else made


def fields_of(shape: type[BaseModel | PartFigures]) -> Mapping[str, Any]:
    """Return the type of each field, by its name."""
    if issubclass(shape, BaseModel):
        return {name: field.annotation for name, field in shape.model_fields.items()}
    types = get_type_hints(shape, include_extras=True)
    return {field.name: types[field.name] for field in fields(shape)}  # type: ignore[arg-type]  # each is a dataclass
