"""What settings there are: the one walk over the models that the errors and the reference share."""

import types
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel, TypeAdapter
from pydantic.fields import FieldInfo

from millrace.app.settings.yaml_file import Key

NAME = "<name>"
"""Stands for any name, where a mapping's keys are the user's own."""


def models_in(annotation: Any) -> list[tuple[Key, type[BaseModel]]]:
    """Yield the models inside an annotation, each with the keys between: `dict[str, M]` holds M below any name."""
    origin = get_origin(annotation)
    if isinstance(annotation, type) and origin is None:
        return [((), annotation)] if issubclass(annotation, BaseModel) else []
    if origin is Annotated:
        return models_in(get_args(annotation)[0])
    if origin in {Union, types.UnionType}:
        return [found for member in get_args(annotation) for found in models_in(member)]
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return [((NAME, *key), model) for key, model in models_in(get_args(annotation)[1])]
    return []


def settings_of(model: type[BaseModel], above: Key = ()) -> Iterator[tuple[Key, FieldInfo]]:
    """Yield every setting, sections included, in the order of the models."""
    for name, info in model.model_fields.items():
        key = (*above, info.alias or name)
        yield key, info
        for between, inner in models_in(info.annotation):
            yield from settings_of(inner, (*key, *between))


def matches(pattern: Key, key: Key) -> bool:
    """Return whether a key matches a pattern in which names are left open."""
    return len(pattern) == len(key) and all(part in {NAME, actual} for part, actual in zip(pattern, key, strict=True))


def type_of(info: FieldInfo) -> TypeAdapter[Any]:
    """Return a setting's type with its checks and its way of writing."""
    annotation: Any = info.annotation
    return TypeAdapter(Annotated[annotation, *info.metadata] if info.metadata else annotation)


def spelled(info: FieldInfo, value: Any) -> Any:
    """Return a value as a config file would have it: 60.0 seconds are `1m`."""
    return type_of(info).dump_python(value, mode="json", warnings=False)
