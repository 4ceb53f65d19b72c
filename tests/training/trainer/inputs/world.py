"""A world whose records change as those of people do, day and night, with weekends and a holiday, and faults in it.

Times are compressed: an hour of the world is a minute of event time, so all that changes by itself changes sixty times
as fast as it would. Records are made in NumPy and given to the watcher as decoded chunks, without Kafka and a model.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from millrace.consumers.records import Partition
from millrace.pipelines.gates.input_gate import InputGate
from millrace.pipelines.schema import Field, Schema
from millrace.pipelines.stream.blocks import Span
from millrace.pipelines.stream.decode import Decoded
from millrace.training.telemetry.events import EventKind, Severity
from millrace.training.telemetry.watcher import Call
from millrace.training.trainer.inputs.input_watch import Inputs

RATE = 1000
"""Records a second."""
CALL = 500
"""Records of a call, and of a chunk."""
HOUR_S = 60.0
DAY_S, WEEK_S = 24 * HOUR_S, 7 * 24 * HOUR_S
_HOLIDAY = 3
"""A Thursday."""
PARTITION = Partition("clicks", 0)
APP = "app"
Column = npt.NDArray[Any]
Columns = dict[str, Column]
_TEXTS = ("country", "device", "page", "user", "city")


def _text(values: list[str]) -> Column:
    found = np.empty(len(values), object)
    found[:] = [value.encode() for value in values]
    return found


_COUNTRIES = _text([f"C{n:02}" for n in range(40)])
_DEVICES = _text(["android", "ios", "desktop", "tablet", "tv"])
_CITIES = _text(["Paris", "Zürich", "Berlin", "München", "Málaga", "Roma", "Kraków", "Oslo", "Madrid", "Tromsø"])
_APPS = _text(["5.1", "5.2", "5.0", "4.9"])
_PAGES = _text([f"/shop/{n % 7}/item-{n * n * 7919 % 99991}" for n in range(5000)])


def night(seconds: float) -> float:
    """Return how much of a night it is, from 0 to 1."""
    return (1 + math.cos(2 * math.pi * seconds / DAY_S)) / 2


def free(seconds: float) -> float:
    """Return how much of a weekend or a holiday it is, from 0 to 1; it comes and goes within two hours."""
    day, into = divmod(seconds, DAY_S)
    weekday = int(day) % 7
    mine, last = (float(one in {5, 6, _HOLIDAY}) for one in (weekday, (weekday - 1) % 7))
    return last + (mine - last) * min(1.0, into / (2 * HOUR_S))


@dataclass
class World:
    """Records of some fields, at times that go on."""

    fields: int
    seed: int
    at_s: float = 9 * HOUR_S
    offset: int = 0
    kinds: dict[str, str] = field(init=False, default_factory=dict)
    """The kind of each field, by its name."""

    def __post_init__(self) -> None:
        every = [*KINDS]
        self.kinds = {
            f"{every[at % len(every)]}_{at // len(every)}": every[at % len(every)] for at in range(self.fields)
        }
        draws = np.random.default_rng(self.seed)
        self._tuned = {name: draws.random(4) for name in self.kinds}
        self._random = np.random.default_rng([self.seed, 1])

    def schema(self) -> Schema:
        """Return the schema; `maybe` may be missing."""
        fields = [
            Field(
                name=name,
                source=name,
                dtype="string" if kind in _TEXTS else "float32",
                missing=-1.0 if kind == "maybe" else None,
            )
            for name, kind in self.kinds.items()
        ]
        return Schema(features=(*fields, Field(name=APP, source=APP, dtype="string")))

    def of_kind(self, *kinds: str) -> list[str]:
        """Return the fields of some kinds."""
        return [name for name, kind in self.kinds.items() if kind in kinds]

    def records(self, count: int) -> Columns:
        """Return the next records, by column."""
        seconds = self.at_s
        self.at_s += count / RATE
        random, dark, off = self._random, night(seconds), free(seconds)
        found = {}
        for name, kind in self.kinds.items():
            a, b, by_day, by_week = self._tuned[name].tolist()
            swing = 0.4 * by_day * dark + 0.4 * by_week * off
            values = KINDS[kind](Draw(random, count, swing, a, b, seconds, self.offset))
            found[name] = values if kind in _TEXTS else values.astype(np.float32)
        found[APP] = _APPS[np.minimum(random.geometric(0.45, count) - 1, 3)]
        self.offset += count
        return found


class Draw(NamedTuple):
    """What the values of a field are drawn by."""

    random: np.random.Generator
    size: int
    swing: float
    """How far it is off by the time of the day and the week."""
    a: float
    """From 0 to 1, another for each field."""
    b: float
    at_s: float
    offset: int

    def chosen(self, values: Column, weights: Column) -> Column:
        """Return some of the values."""
        return np.asarray(values[self.random.choice(len(values), self.size, p=weights / weights.sum())])

    def where(self, share: float, values: Column, others: float) -> Column:
        """Return some of the values, and the other one elsewhere."""
        return np.where(self.random.random(self.size) < share, values, others)

    def countries(self) -> Column:
        ranks = np.arange(1, 41) ** -(0.8 + self.a)
        return self.chosen(_COUNTRIES, ranks * (1 + self.swing * np.cos(np.arange(40) + 6 * self.b)))


KINDS: Mapping[str, Callable[[Draw], Column]] = {
    "price": lambda d: np.exp(d.random.normal(d.a * 3 + 0.5 * d.swing, 0.5 + d.b, d.size)).round(2),
    "age": lambda d: d.random.normal(35 + 10 * d.a - 8 * d.swing, 8 + 6 * d.b, d.size),
    "count": lambda d: d.random.poisson(1 + 6 * d.a + 3 * d.swing, d.size),
    "zeros": lambda d: d.where(0.2 + 0.3 * d.a + 0.2 * d.swing, d.random.exponential(5.0, d.size), 0.0),
    "share": lambda d: d.random.beta(1 + 3 * d.a, 1 + 3 * d.b + 2 * d.swing, d.size),
    "tail": lambda d: d.random.pareto(1.1, d.size) * (1 + 20 * d.a) * (1 + d.swing),
    "hour": lambda d: (d.at_s / HOUR_S + d.random.normal(0, 0.5, d.size)) % 24,
    "flag": lambda d: d.random.random(d.size) < 0.1 + 0.2 * d.a + 0.1 * d.swing,
    "clock": lambda d: d.at_s + np.arange(d.size) / RATE,
    "serial": lambda d: d.offset + np.arange(d.size),
    "maybe": lambda d: d.where(0.9 - 0.4 * d.a - 0.2 * d.swing, d.random.normal(10, 3, d.size), -1.0),
    "country": lambda d: d.countries(),
    "device": lambda d: d.chosen(_DEVICES, np.array([3, 2, 2 - d.swing, 0.5 + d.swing, 0.2 + d.swing * d.b])),
    "page": lambda d: _PAGES[np.minimum(d.random.zipf(1.2 + 0.3 * d.a + 0.2 * d.swing, d.size), 5000) - 1],
    "user": lambda d: _text([f"u{n:09}" for n in d.random.integers(0, 10**9, d.size).tolist()]),
    "city": lambda d: _CITIES[d.random.integers(0, 10, d.size)],
}
"""By kind of field; each of those of texts gives bytes."""


Fault = Callable[[Columns, str, World, np.random.Generator], None]
"""Changes the records in place."""


def _number(change: Callable[[Column], Column]) -> Fault:
    def fault(columns: Columns, name: str, world: World, random: np.random.Generator) -> None:
        del world, random
        columns[name] = change(columns[name]).astype(np.float32)

    return fault


def _each(change: Callable[[bytes], bytes]) -> Fault:
    def fault(columns: Columns, name: str, world: World, random: np.random.Generator) -> None:
        del world, random
        known: dict[bytes, bytes] = {}
        found = np.empty(len(columns[name]), object)
        found[:] = [known.setdefault(value, change(value)) for value in columns[name].tolist()]
        columns[name] = found

    return fault


def _some(share: float, value: Any) -> Fault:
    def fault(columns: Columns, name: str, world: World, random: np.random.Generator) -> None:
        del world
        columns[name] = columns[name].copy()
        columns[name][random.random(len(columns[name])) < share] = value

    return fault


def _swapped(columns: Columns, name: str, world: World, random: np.random.Generator) -> None:
    del random
    other = other_of(world, name)
    columns[name], columns[other] = columns[other], columns[name]


def other_of(world: World, name: str) -> str:
    """Return the field with which one is swapped: one of another kind."""
    other = {"price": "age", "country": "device"}[world.kinds[name]]
    return world.of_kind(other)[0]


def _in_app(columns: Columns, name: str, world: World, random: np.random.Generator) -> None:
    del world, random
    here = np.array([value == b"5.2" for value in columns[APP].tolist()])
    columns[name] = np.where(here, columns[name] * 100, columns[name]).astype(np.float32)


FAULTS: Mapping[str, tuple[str, Fault]] = {
    "scaled": ("price", _number(lambda x: x * 100)),
    "unit": ("tail", _number(lambda x: x / 1000)),
    "shifted": ("age", _number(lambda x: x + 30)),
    "sign": ("age", _number(lambda x: -x)),
    "missing": ("maybe", _number(lambda x: np.full_like(x, -1.0))),
    "sometimes missing": ("maybe", _some(0.5, -1.0)),
    "not a number": ("price", _some(0.4, np.nan)),
    "constant": ("share", _number(lambda x: np.full_like(x, 0.5))),
    "zero": ("count", _number(lambda x: x * 0)),
    "flag inverted": ("flag", _number(lambda x: 1 - x)),
    "rounded": ("share", _number(np.rint)),
    "clipped": ("age", _number(lambda x: np.minimum(x, 30))),
    "time zone": ("hour", _number(lambda x: (x + 8) % 24)),
    "one app": ("price", _in_app),
    "swapped numbers": ("price", _swapped),
    "swapped texts": ("country", _swapped),
    "constant text": ("device", _each(lambda _: b"android")),
    "new category": ("country", _some(0.3, b"C99")),
    "truncated text": ("user", _each(lambda value: value[:4])),
    "encoding": ("city", _each(lambda value: value.decode().encode("utf-8").decode("latin-1").encode("utf-8"))),
}
"""By kind: the kind of field that has it, and what it does."""


def planted(kind: str, name: str, world: World, random: np.random.Generator) -> Callable[[Columns], None]:
    """Return what plants a fault of a kind in a field."""
    _, fault = FAULTS[kind]
    return lambda columns: fault(columns, name, world, random)


@dataclass
class Watch:
    """A watcher that is given records, and what it has named."""

    world: World
    marks: list[tuple[float, str, str, list[str]]] = field(default_factory=list)
    """The second, the field in front, the text, and the others."""

    def __post_init__(self) -> None:
        self.gate = InputGate(self.world.schema())
        self.inputs = Inputs(self.gate, [APP], self._report)
        self.gate.begin({})

    def _report(self, kind: EventKind, text: str, severity: Severity = Severity.INFO, **facts: Any) -> None:
        if kind is EventKind.UNREAD_FIELDS:
            return
        assert (kind, severity) == (EventKind.INPUT_CHANGED, Severity.WARNING)
        self.marks.append((self.world.at_s, facts["field"], text, facts["others"]))

    def go(self, seconds: float, change: Callable[[Columns], None] | None = None) -> None:
        """Give it the records of some seconds."""
        for _ in range(round(seconds * RATE / CALL)):
            start, began_ms = self.world.offset, round(self.world.at_s * 1000)
            columns = self.world.records(CALL)
            if change is not None:
                change(columns)
            self.gate.admits(chunk_of(columns, start, began_ms))
            self.inputs.called(call_of(start, start + CALL))
            # The trainer posts the figures once a second.
            if start // RATE != self.world.offset // RATE:
                self.inputs.figures()


def chunk_of(columns: Columns, start: int, began_ms: int) -> Decoded:
    """Return records as they are decoded."""
    count = len(columns[APP])
    return Decoded(
        partition=PARTITION,
        incarnation=1,
        start=start,
        end=start + count,
        fetched_at=0.0,
        lost=0,
        offsets=np.arange(start, start + count),
        event_times=began_ms + np.arange(count) * 1000 // RATE,
        features=columns,
        labels={},
        weights=None,
        refused=(),
        nbytes=0,
    )


def call_of(start: int, end: int) -> Call:
    """Return a call that has learnt these offsets."""
    span = Span(partition=PARTITION, index=0, start=start, end=end, learnt=end - start)
    facts: Any = SimpleNamespace(spans=[span])
    return Call(facts=facts, rows=(), scored=(), step=1, records=end)
