"""Metrics, and figures: the numbers that a part of the service reports about itself, declared once, beside the part.

A part reports a frozen dataclass below `PartFigures`. The text under a field says what it is; an annotation names its
metric, and says which value is bad. `/status`, `/metrics`, `docs/metrics.md` and the page loop over the fields. The
figures of a capability stand in the `figures.py` of its room, where the app finds them. It shows those that a part of
the service, or of the trainer's state, returns from `figures()`.
"""

import ast
import inspect
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Annotated, Any, ClassVar, Literal, Protocol, TypeAlias, get_type_hints, runtime_checkable

from pydantic import BeforeValidator, ConfigDict, PlainSerializer

Kind = Literal["counter", "gauge", "histogram"]
PREFIX = "millrace_"
MODEL = "model"


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """One metric."""

    short: str
    """Its name without the prefix."""
    kind: Kind
    help: str
    """What it is, and which value is bad, where one can be. On a field: what follows the field's own text."""
    labels: tuple[str, ...]
    """Besides `model`."""
    elapsed: bool = False
    """Whether the field is a moment, and the reading the seconds since then. Then `help` is the whole text."""
    unless: float | None = None
    """The reading while the field is None; None for no reading."""

    @property
    def name(self) -> str:
        """The full name, as Prometheus knows it."""
        return PREFIX + self.short


def gauge(short: str, text: str, *labels: str) -> Metric:
    """Return a metric of a value that may go up and down."""
    return Metric(short=short, kind="gauge", help=text, labels=labels)


def counter(short: str, text: str, *labels: str) -> Metric:
    """Return a metric of a value that only ever grows; its name ends in `_total`."""
    return Metric(short=f"{short}_total", kind="counter", help=text, labels=labels)


def histogram(short: str, text: str, *labels: str) -> Metric:
    """Return a metric of how often which values came."""
    return Metric(short=short, kind="histogram", help=text, labels=labels)


def elapsed(short: str, text: str, *, unless: float | None = None) -> Metric:
    """Return a metric of the seconds since the moment that a field holds."""
    return Metric(short=short, kind="gauge", help=text, labels=(), elapsed=True, unless=unless)


@dataclass(frozen=True, slots=True)
class NoMetric:
    """The annotation of a number that has no metric."""

    why: str


SHOWN = ConfigDict(use_attribute_docstrings=True, extra="forbid")
"""The `__pydantic_config__` of a dataclass that an answer shows as it is: the text under a field describes it."""


class PartFigures:
    """What a part reports about itself: the base of a frozen dataclass.

    A field that is None is not known: it has no reading, and the answer leaves it out. A mapping has a reading for each
    key. The text of the class describes its place in `/status`.
    """

    __slots__ = ()
    __pydantic_config__: ClassVar[ConfigDict] = SHOWN
    name: ClassVar[str]
    """The key of these figures, and of their place in `/status`."""
    within: ClassVar[str | None] = None
    """The part of `/status` that shows them: `training`, or `` for the top; None if `/status` does not."""
    section: ClassVar[str] = "The trainer"
    """The section of docs/metrics.md that has their metrics."""
    per: ClassVar[str] = ""
    """The label of what there is one of these for, such as each class; `` if there is one for all."""


Reported: TypeAlias = PartFigures | Mapping[str, PartFigures]
"""The figures of a part; by the value of their label if there are several."""


@runtime_checkable
class Reporter(Protocol):
    """A part that reports figures."""

    def figures(self) -> Reported | None:
        """Return what the part reports now; None or an empty mapping for nothing."""
        ...


def reported_by(parts: Iterable[object]) -> dict[str, Reported]:
    """Return by name what those of the parts report that report anything."""
    found = (part.figures() for part in parts if isinstance(part, Reporter))
    return {name_of(figures): figures for figures in found if figures}


def name_of(figures: Reported) -> str:
    """Return the name of figures, of which there is at least one."""
    return next(iter(figures.values())).name if isinstance(figures, Mapping) else figures.name


_KNOWN: dict[type[PartFigures], Mapping[str, Metric]] = {}


def metrics_of(kind: type[PartFigures]) -> Mapping[str, Metric]:
    """Return the metrics of figures, by the field or property with the value."""
    if kind in _KNOWN:  # the source of a class is parsed once
        return _KNOWN[kind]
    found, labels = dict[str, Metric](), (kind.per,) if kind.per else ()
    for field, marks, sentence in _described(kind):
        for mark in marks:
            if isinstance(mark, Metric):
                text = mark.help if mark.elapsed else f"{sentence} {mark.help}".strip()
                found[field] = replace(mark, labels=(*labels, *mark.labels), help=text)
    _KNOWN[kind] = found
    return found


def numbers_without_metric(kind: type[PartFigures]) -> Mapping[str, NoMetric]:
    """Return the fields whose annotation says why they have no metric."""
    return {field: mark for field, marks, _ in _described(kind) for mark in marks if isinstance(mark, NoMetric)}


def _described(kind: type[PartFigures]) -> Iterator[tuple[str, tuple[Any, ...], str]]:
    """Yield each field and property: its name, its annotations, and the text that describes it."""
    (tree,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    assert isinstance(tree, ast.ClassDef)
    texts = {
        node.target.id: after.value.value
        for node, after in zip(tree.body, tree.body[1:], strict=False)
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
        if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
    }
    for name, hint in get_type_hints(kind, include_extras=True).items():
        yield name, getattr(hint, "__metadata__", ()), " ".join(str(texts.get(name, "")).split())
    for name, found in vars(kind).items():
        if isinstance(found, property):
            hint = get_type_hints(found.fget, include_extras=True).get("return")
            yield name, getattr(hint, "__metadata__", ()), " ".join((found.__doc__ or "").split())


def to_float32(value: float) -> float:
    """Round to the digits that float32 holds."""
    return float(f"{value:.7g}")


Float32 = Annotated[float, PlainSerializer(to_float32, return_type=float)]
"""A number that `/status` shows to the digits that float32 holds."""


def moment(seconds: float) -> str:
    """Return seconds since 1970 as ISO 8601 in UTC."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


Moment = Annotated[
    float,
    BeforeValidator(lambda value: datetime.fromisoformat(value).timestamp() if isinstance(value, str) else value),
    PlainSerializer(moment, return_type=str),
]
"""Seconds since 1970, which `/status` shows as ISO 8601."""
