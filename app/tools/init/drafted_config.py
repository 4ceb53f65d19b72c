"""The drafted config file: what the records show, as settings, with a comment beside each line. Pure.

How much to learn from each record, batch size, passes and learning rate, depends on how fast the records come. The
number of updates a record decides how soon a small model learns a change. So a draft makes as many as a core has the
time for: for a slow topic small batches, each learnt several times, for a fast one large batches.
"""

import math
import re
import textwrap
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from millrace.app.service.pace import pace_for
from millrace.app.settings.spelling import flow
from millrace.app.tools.init.column_roles import LENGTH, Roles, Sequences, Task
from millrace.app.tools.init.columns import ColumnKind, ColumnLook
from millrace.app.tools.init.later_labels import LaterLabels, labels_section
from millrace.pipelines.formats.draft import Look

DTYPES = {
    ColumnKind.NUMBER: "float32",
    ColumnKind.NUMBERS: "float32",
    ColumnKind.VARYING_NUMBERS: "float32",
    ColumnKind.TEXTS: "string",
    ColumnKind.CATEGORY: "int64",
    ColumnKind.FLAG: "bool",
    ColumnKind.TEXT: "string",
    ColumnKind.FREE_TEXT: "string",
    ColumnKind.IMAGE: "uint8",
}
_RARE, _MOST_CLASSES = 1 / 20, 20
"""A class that comes so seldom is balanced, among at most so many. They are the numbers from 0 on."""
_LIFT = 10
"""Larger weights gain little more, and the corrected probabilities are further off (docs/shaping.md)."""
_FEW_TO_REPEAT = 1 / 100
"""A class that comes more seldom is learnt by heart if its batches are repeated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftTarget:
    """Where the records are, and what the config is called."""

    name: str
    bootstrap_servers: tuple[str, ...]
    topic: str
    held: int
    """Records in the topic just now."""
    records_per_s: float | None = None
    """How many come of late; None where that is not known."""


_OF_LAYERS = re.compile(
    r"prediction|(activation|average_pooling2d|concatenate|conv2d|dense|embedding|flatten|group_normalization|gru|"
    r"hashing|reshape)(_\d+)?"
)
"""Names of layers in a draft, which no input may have: its own, and those that Keras gives."""


def input_names(features: Sequence[ColumnLook]) -> dict[str, str]:
    """Return the model's name for each field: the record's own, where Keras accepts it."""
    names: dict[str, str] = {}
    for column in features:
        plain = re.sub(r"\W", "_", column.source.removeprefix("$").replace("[]", ""), flags=re.ASCII)
        plain = f"field_{plain}" if not re.match(r"[A-Za-z]", plain) or _OF_LAYERS.fullmatch(plain) else plain
        names[column.source] = _apart(plain, names.values())
    return names


def length_names(features: Sequence[ColumnLook]) -> dict[str, str]:
    """Return the model's name for the length of each list that varies, and for the number of words of a free text."""
    inputs, lengths = input_names(features), dict[str, str]()
    varying = [column for column in features if column.kind.varies or column.kind is ColumnKind.FREE_TEXT]
    for source in [column.source for column in varying]:
        lengths[source] = _apart(f"{inputs[source]}_length", [*inputs.values(), *lengths.values()])
    return lengths


def known_name(features: Sequence[ColumnLook]) -> str:
    """Return the name of the model's input that says how many records a sequence has."""
    return _apart("known", [*input_names(features).values(), *length_names(features).values()])


def _apart(name: str, taken: Collection[str]) -> str:
    while name in taken:
        name += "_"
    return name


def dtype_of(column: ColumnLook) -> str:
    """Return the dtype in which a field is read."""
    return "float64" if column.fine and column.kind is ColumnKind.NUMBER else DTYPES[column.kind]


def rounded(number: float) -> float:
    """Return the number with six digits: more would reveal more of the records than a model needs."""
    return float(f"{number:.6g}")


def rounded_centre(column: ColumnLook) -> float:
    """Return the median with six digits, or with as many as its spread needs."""
    return _rounded_beside(column.centre, column.spread)


def rounded_quantiles(column: ColumnLook) -> list[float]:
    """Return the quantiles, ascending and each once; the first is the stand-in of a whole number that may be absent."""
    quantiles = [_rounded_beside(one, column.spread) for one in column.quantiles]
    if column.kind is ColumnKind.CATEGORY and column.absent:
        quantiles.insert(0, float(absent_whole_number(column)))
    return [*dict.fromkeys(quantiles)]


def absent_whole_number(column: ColumnLook) -> int:
    """Return what stands in for a whole number of few values that a record lacks: one below all that were seen."""
    return min(-1, int(column.distinct[0]) - 1) if column.ordered and column.distinct else -1


def _rounded_beside(number: float, spread: float) -> float:
    magnitude = max(abs(number), spread) / spread
    return float(f"{number:.{max(6, math.ceil(math.log10(magnitude)) + 2)}g}")


def config_text(
    place: DraftTarget,
    look: Look,
    roles: Roles,
    sequences: Sequences | None = None,
    later: LaterLabels | None = None,
) -> str:
    """Return the whole file."""
    records = "\n".join(_records(look, roles, labelled=later is None))
    labels = "" if later is None else f"{labels_section(later, _label(roles), flow)}"
    # How often each class of the label comes; nothing if it has no classes, or they have names.
    counts = Counter[int]()
    if roles.task in {Task.BINARY, Task.CLASSES}:
        values = [row.get(roles.label.source) for row in look.rows]
        counts.update(int(one) for one in values if isinstance(one, int | float) and math.isfinite(one))
    images = any(one.kind is ColumnKind.IMAGE for one in roles.features)
    pace = pace_for(
        place.held,
        place.records_per_s,
        slow=images or (sequences is not None and sequences.whole),
        images=images,
        rare=len(counts) > 1 and min(counts.values()) < _FEW_TO_REPEAT * counts.total(),
    )
    paced = "".join(f"  {f'{name}: {flow(value)}':<33} # {_TRAINING[name]}\n" for name, value in pace.training.items())
    return f"""\
# Drafted by `millrace init` from {len(look.rows):,} records of {place.topic}. Change what you like.
# `millrace validate -c` checks it, and `millrace config schema` describes every setting.

name: {flow(place.name)}

kafka:
  bootstrap_servers: {flow(list(place.bootstrap_servers))}
  topics: {flow([place.topic])}
  start: earliest                   # the first start only; latest, -7d, or a time are others

{records}

{labels}model:
  build: ./model.py:build_model
  args: {flow({"learning_rate": pace.learning_rate}):<27} # Adam's; it goes with the two numbers below

{textwrap.fill(pace.why, 98, initial_indent="# ", subsequent_indent="# ")}
training:
{paced}
{_balance(counts)}{_windows(roles, sequences)}checkpoints:
  path: ./checkpoints               # one folder per name below it
"""


def _balance(counts: Counter[int]) -> str:
    """Propose a balance of classes, as a section; nothing where no class is rare."""
    rarest = min(counts, key=lambda one: (counts[one], one), default=0)
    few = 2 <= len(counts) <= _MOST_CLASSES and sorted(counts) == [*range(len(counts))]
    if not few or counts[rarest] > _RARE * counts.total():
        return ""
    target = _lifted(counts)
    said = f"1 of {round(counts.total() / counts[rarest]):,} records is of class {rarest}"
    return f"""\
# {said}; learnt as they come, it would be ignored for long.
balance:
  {f"target: {flow(target)}":<32}  # the share of each class in what is learnt

"""


def _windows(roles: Roles, sequences: Sequences | None) -> str:
    """Return the windows of the drafted model; as a comment if they would miss records; nothing if no key repeats."""
    if sequences is None:
        return ""
    names, key = input_names(roles.features), sequences.key
    said = f"The records that were looked at are of {sequences.distinct:,} values of {key.source}."
    settings: dict[str, Any] = {"by": names[key.source], "length": LENGTH}
    if not sequences.whole:
        return f"""\
# {said} To learn sequences of the
# last ones of each, produce the records with it as their key, and run `millrace init` again: it then
# drafts a model for sequences, and the line below.
# windows: {flow(settings)}

"""
    steps = sequences.steps(roles.features)
    if len(steps) < len(roles.features) - 1:
        settings["of"] = [names[one.source] for one in steps]
    return f"""\
# {said} The model is given
# the last ones of each; without windows it needs other inputs.
windows: {flow({**settings, "lengths": known_name(roles.features)})}

"""


def _lifted(counts: Counter[int]) -> dict[int, float]:
    """Return shares to learn by class: a rare one gets ten times its own, an even one at most; others what is left."""
    shares = {one: count / counts.total() for one, count in sorted(counts.items())}
    even = 1 / len(shares)
    lifted = {one: round(min(even, _LIFT * share), 4) for one, share in shares.items() if share < even}
    others = sum(share for one, share in shares.items() if one not in lifted)
    left = (1 - sum(lifted.values())) / others
    target = {one: lifted.get(one, round(share * left, 4)) for one, share in shares.items()}
    most = max(shares, key=lambda one: shares[one])
    return {**target, most: round(1 - sum(share for one, share in target.items() if one != most), 4)}


def _records(look: Look, roles: Roles, *, labelled: bool) -> Iterator[str]:
    yield "records:"
    yield f"  format: {look.format}"
    for key, value in look.section.items():
        yield f"  {key}: {flow(value)}{f'    # {look.hints[key]}' if key in look.hints else ''}"
    yield "  features:                         # the names of the model's inputs"
    names, lengths = input_names(roles.features), length_names(roles.features)
    for column in roles.features:
        name = names[column.source]
        yield f"    {_line(name, _feature(column, look, name, lengths.get(column.source)), _said(column))}"
    for column in roles.left_out:
        yield f"  # left out: {flow(column.source)}{f', {column.why}' if column.why else ''}"
    if labelled:
        yield f"  {_line('label', _label(roles), 'records without it are set aside')}"
    if roles.weight is not None:
        yield f"  weight: {flow({'field': roles.weight.source, **({'missing': 1.0} if roles.weight.absent else {})})}"
    if roles.event_time is not None:
        yield f"  {_event_time(roles.event_time)}"
    for note in look.notes:
        yield from textwrap.wrap(note, 98, initial_indent="  # ", subsequent_indent="  # ")
    yield "  # dead_letters: {topic: …}        # gets every record that cannot be learnt from, with the reason"


def _event_time(time: ColumnLook) -> str:
    settings = {"field": time.source, **({} if time.form == "ms" else {"format": time.form})}
    if not time.naive:
        return f"event_time: {flow(settings)}"
    return _line("event_time", {**settings, "zone": "UTC"}, "its texts have no zone; write the one that they mean")


def _line(name: str, value: Any, comment: str) -> str:
    return f"{f'{flow(name)}: {flow(value)}':<32}  # {comment}"


def _said(column: ColumnLook) -> str:
    if column.kind is ColumnKind.IMAGE:
        return "an image; others are resized to this height and width, and bad ones set aside"
    if not column.kind.varies:
        return column.kind
    return f"{column.kind}, up to {column.lengths[1]} seen; elements beyond {column.bound} are cut, and counted"


def _feature(column: ColumnLook, look: Look, name: str, length: str | None) -> Any:
    settings: dict[str, Any] = {"dtype": dtype_of(column)}
    if column.kind is ColumnKind.NUMBERS:
        settings["shape"] = [column.lengths[0]]
    if column.kind is ColumnKind.IMAGE:
        settings |= {"shape": list(column.shape), "image": column.form}
    if column.kind.varies:
        pad = "" if column.kind is ColumnKind.TEXTS else 0.0
        settings |= {"shape": [column.bound], "pad": pad, "length": length}
    if (column.absent and column.kind is not ColumnKind.IMAGE) or (
        look.empty_is_absent and column.kind in {ColumnKind.TEXT, ColumnKind.FREE_TEXT}
    ):
        stand_ins = {
            ColumnKind.CATEGORY: absent_whole_number(column),
            ColumnKind.FLAG: False,
            ColumnKind.TEXT: "",
            ColumnKind.TEXTS: "",
        }
        stand_in = stand_ins.get(column.kind, rounded_centre(column))
        settings["missing"] = "" if column.kind is ColumnKind.FREE_TEXT else stand_in
    if name != column.source:
        settings["field"] = column.source
    return settings["dtype"] if settings.keys() == {"dtype"} else settings


def _label(roles: Roles) -> Any:
    label, task = roles.label, roles.task
    settings: dict[str, Any] = {"field": label.source, "dtype": "float32"}
    if task is Task.BINARY:
        settings |= {"dtype": "bool"} if label.kind is ColumnKind.FLAG else {"one_of": [0, 1]}
    elif task is Task.CLASSES:
        settings |= {"dtype": "int32", "min": 0, "max": label.distinct[-1]}
    elif task is Task.NAMED_CLASSES:
        settings |= {"dtype": "int32", "one_of": list(label.distinct)}
    return settings


_TRAINING = {
    "batch_size": "records a step; larger ones are faster",
    "passes": "steps with each batch; only the first scores its records",
    "memory": "the later ones learn from so many records before",
    "members": "three models, mixed by how good each was of late",
}
"""The comment beside each setting."""
