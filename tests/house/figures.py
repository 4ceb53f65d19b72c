"""Keeps `docs/figures.json`: every figure that README and docs print, with its unit, its aim, and the run that gave it.

The recipes that measure put their figures here if their run is valid; the tables of the pages are made from this file.
A name is that of a figure, or dotted: `case.product-json.records_per_s`, `peer.river.accuracy`, `row.17`.
"""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path

ROOT = Path(__file__).parents[2]
FILE = ROOT / "docs" / "figures.json"
_UNITS: Mapping[str, str] = {
    "_mb_per_min": "MB/min",
    "_per_cpu_s": "records/CPU s",
    "records_per_s": "records/s",
    "rows_per_s": "rows/s",
    "_points": "points",
    "_cores": "cores",
    "cpu_us": "µs",
    "_ms": "ms",
    "_seconds": "s",
    "_s": "s",
}
"""By the end of a figure's name; the first that fits."""
_AIM = re.compile(r"^(≥|≤|<|>|)\s*([\d.e+-]+)$")

Value = float | int | str


@dataclass(frozen=True, kw_only=True)
class Run:
    """The run that gave a figure."""

    date: str
    commit: str
    command: str


@dataclass(frozen=True, kw_only=True)
class Figure:
    """A figure, as it is kept; `low` and `high` are those of its `rounds`."""

    value: Value
    unit: str
    aim: str
    date: str
    commit: str
    command: str
    low: float | None = None
    high: float | None = None
    rounds: int | None = None

    @property
    def missed(self) -> bool:
        """Whether the value does not reach its aim."""
        found = _AIM.match(self.aim)
        if found is None or isinstance(self.value, str):
            return False
        value, aim = float(self.value), float(found[2])
        return not {"≥": value >= aim, "≤": value <= aim, "<": value < aim, ">": value > aim, "": value == aim}[
            found[1]
        ]


Figures = Mapping[str, Figure]


def unit_of(name: str) -> str:
    """Return the unit of a figure by its name; none for a ratio or a count."""
    return next((unit for end, unit in _UNITS.items() if name.endswith(end)), "")


def figure(name: str, value: Value, run: Run, *, aim: str = "", rounds: Iterable[float] = ()) -> Figure:
    """Return a figure of a run; `rounds` are its values by round, if it has several."""
    single = Figure(value=value, unit=unit_of(name), aim=aim, **asdict(run))
    values = list(rounds)
    return replace(single, low=min(values), high=max(values), rounds=len(values)) if len(values) > 1 else single


def kept(file: Path = FILE) -> dict[str, Figure]:
    """Return the figures of the file, in its order."""
    return {name: Figure(**told) for name, told in json.loads(file.read_text()).items()} if file.exists() else {}


def keep(new: Figures, file: Path = FILE, *, whole: tuple[str, ...] = ()) -> dict[str, Figure]:
    """Put figures into the file, in the place of those of the same name, and return all of it.

    Of the names that begin with one of `whole` only the new ones stay, as they are printed under one date.
    """
    before = {name: told for name, told in kept(file).items() if not whole or not name.startswith(whole)}
    after = dict(sorted((before | dict(new)).items()))
    lines = [f"{json.dumps(name)}: {json.dumps(_said(told), ensure_ascii=False)}" for name, told in after.items()]
    file.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    return after


def _said(told: Figure) -> dict[str, Value]:
    return {name: value for name, value in asdict(told).items() if value is not None}


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> list[str]:
    """Return a table in Markdown."""
    cells = list(head)
    return [f"| {' | '.join(row)} |" for row in (cells, ["---"] * len(cells), *rows)]


def fill(page: str, written: str, begin: str, end: str) -> str:
    """Return the page with other text between its marks; SystemExit if it lacks them."""
    before, opening, rest = page.partition(begin)
    _, closing, after = rest.partition(end)
    if not opening or not closing:
        raise SystemExit(f"the page lacks {begin!r} or {end!r}")
    return f"{before}{begin}\n{written}\n{end}{after}"
