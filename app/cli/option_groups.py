"""Groups of options: a verb takes a dataclass, and each of its fields is an option of the verb."""

import functools
import inspect
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from typing import Any, get_type_hints


def grouped(verb: Callable[..., None]) -> Callable[..., None]:
    """Give the verb one option for each field of its parameters that are dataclasses, in their places.

    A field is annotated as an option is, and its default is the option's.
    """
    parameters = inspect.signature(verb).parameters
    groups: dict[str, Any] = {n: one.annotation for n, one in parameters.items() if is_dataclass(one.annotation)}

    @functools.wraps(verb)
    def with_options(**given: Any) -> None:
        made = {
            name: group(**{field.name: given.pop(field.name) for field in fields(group)})
            for name, group in groups.items()
        }
        verb(**made, **given)

    options = list[inspect.Parameter]()
    for name, parameter in parameters.items():
        options += _options(groups[name]) if name in groups else [parameter.replace(kind=parameter.KEYWORD_ONLY)]
    # typer reads both of them, to find the options of a command.
    with_options.__signature__ = inspect.Signature(options)  # type: ignore[attr-defined]  # mypy knows none
    with_options.__annotations__ = {option.name: option.annotation for option in options}
    return with_options


def _options(group: Any) -> Iterator[inspect.Parameter]:
    hints = get_type_hints(group, include_extras=True)
    for field in fields(group):
        yield inspect.Parameter(
            field.name, inspect.Parameter.KEYWORD_ONLY, default=field.default, annotation=hints[field.name]
        )
