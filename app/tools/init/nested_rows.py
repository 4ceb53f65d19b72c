"""Nested records as flat rows: the values by the sources that the config would read them from. Pure.

An object gives a source for each of its members, a list of objects one for each member of its elements. Where a path
holds an object in one record and something else in another, or an object of very many names, as a map of ids is, the
value stays as it is.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from millrace.pipelines.formats.shared.paths import Path, PathStep

Steps = tuple[PathStep, ...]
_MOST_NAMES = 50
"""An object of more names, over all records, is a map; its keys are named one by one by whoever wants them."""
_DEEPEST = 8


def by_source(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows with a value for each source that any of them has, None where a row lacks it."""
    shapes = _Shapes()
    for row in rows:
        shapes.note((), row)
    leaves = {str(Path(steps)): steps for steps in shapes.leaves(())}
    return [{source: _value_at(row, steps) for source, steps in leaves.items()} for row in rows]


class _Shapes:
    """What the paths of some records hold."""

    def __init__(self) -> None:
        self._names: defaultdict[Steps, dict[str, None]] = defaultdict(dict)
        self._others: set[Steps] = set()
        """Paths that hold something else than objects."""

    def note(self, steps: Steps, value: Any) -> None:
        """Note what a path holds, and the paths below it."""
        if isinstance(value, Mapping) and len(steps) < _DEEPEST:
            self._names[steps].update(dict.fromkeys(value))
            for name, inside in value.items():
                self.note((*steps, PathStep(name)), inside)
        elif isinstance(value, list) and any(isinstance(element, Mapping) for element in value):
            for element in value:
                self.note(_each(steps), element)
        elif value is not None and value != []:
            self._others.add(steps)

    def leaves(self, steps: Steps) -> Iterator[Steps]:
        """Yield the paths that hold values, in the order in which the records show them."""
        each = _each(steps)
        if self._opened(steps):
            for name in self._names[steps]:
                yield from self.leaves((*steps, PathStep(name)))
        elif each != steps and self._opened(each) and steps not in self._others and steps not in self._names:
            yield from self.leaves(each)
        else:
            yield steps

    def _opened(self, steps: Steps) -> bool:
        names = self._names.get(steps, {})
        few = not steps or len(names) <= _MOST_NAMES
        return bool(names) and few and "" not in names and steps not in self._others


def _each(steps: Steps) -> Steps:
    """Return the path of the elements of a list."""
    return (*steps[:-1], PathStep(steps[-1].name, steps[-1].lists + 1)) if steps and not steps[-1].lists else steps


def _value_at(value: Any, steps: Steps) -> Any:
    if not steps or not isinstance(value, Mapping):
        return value if not steps else None
    inside = value.get(steps[0].name)
    if steps[0].lists and isinstance(inside, list):
        return [_value_at(element, steps[1:]) for element in inside]
    return _value_at(inside, steps[1:])
