"""What the answers of `GET /data` hold: how each field of the records is, and how it was. Pure.

Values of texts stand in them only with `api.read_values`; without it there are their shares alone.
"""

from collections.abc import Iterator, Mapping
from typing import Literal

import numpy as np

from millrace.app.monitoring.shapes import Answer, Moment, Shape, event_moment
from millrace.consumers.metric import Float32
from millrace.training.trainer.inputs.changes import Changed
from millrace.training.trainer.inputs.inputs_view import InputsView
from millrace.training.trainer.inputs.portraits import QUANTILES, Portrait
from millrace.training.trainer.inputs.unread_fields import UnreadField

_BINS = 20
_GREATEST = float(np.finfo(np.float64).max)
_WIDE = 50
_LONGEST_VALUE = 60
_TOP = 12


class TopValue(Shape):
    """One of the most frequent values of a text."""

    value: str | None = None
    """Left out unless `api.read_values` lets readers see values."""
    share: Float32
    """Of the records now."""
    before: Float32 | None = None
    """Of those before."""


class PortraitView(Shape):
    """What the values of a field are like in a sample of records."""

    missing: Float32
    """The share of records that lack the field, hold null or no number, or what stands for a missing value."""
    distinct: int
    """Different values in the sample."""
    quantiles: Mapping[str, Float32] | None = None
    """Of numbers: `p05` to `p95`."""
    mean: Float32 | None = None
    length: Float32 | None = None
    """Of texts: the median of their lengths in bytes."""


class InputChange(Shape):
    """How a field is other than before."""

    cause: Literal["missing", "values", "unseen", "length", "characters", "refused"]
    text: str
    """The same as a clause."""
    distance: Float32
    """When it was found: a difference of shares, from 0 to 1."""
    since: Moment
    """The event time of the first record of it, as far as a sample tells."""
    partition: str
    offset: int
    first: str
    """The field that changed most of those that changed with it; its own name if it is that one."""


class InputView(PortraitView):
    """One field of the records."""

    field: str
    kind: Literal["number", "text"]
    distance: Float32
    """How far its newest window lies from those before, as a difference of shares, from 0 to 1."""
    changed: InputChange | None = None
    """Left out if it is as before."""
    set_aside: Mapping[str, int]
    """Records since checkpoint number 0 that were set aside for this field, by reason."""
    cut: int
    """Records since then whose list was cut to its bound."""


class UnreadView(Shape):
    """A field of the records that nobody reads."""

    field: str
    """Where it is in a record, as `records` would name it."""
    types: Mapping[str, Float32]
    """The share of each type among the records that hold it: `text`, `integer`, `list of number` and so on."""
    share: Float32
    """Of the records looked at that hold it, from the first to the last that does."""
    appeared: Moment | None = None
    """The event time of the first record of it, if it was in none before."""
    vanished: Moment | None = None
    """The event time of the last record of it, if it is in none any more."""
    partition: str
    """Of that record; of the first one, if neither."""
    offset: int


class DataAnswer(Answer):
    """Whether the fields of the records are as they were."""

    until: Moment | None = None
    """The event time at which the newest window ended; left out before the first."""
    records: int
    """Records of that window."""
    sampled: int
    """Those of them that were looked at."""
    fields: list[InputView]
    """Those that have changed first, then by how much further off they are than usually."""
    unread: list[UnreadView]
    """Fields that nobody reads, those that have vanished or appeared first; empty if records name no fields."""
    looked_at: int
    """Records since checkpoint number 0 in which they were looked for: one of 512."""
    hours_since: Moment | None = None
    """Since when hours are kept, by event time; left out before one is over."""


class Histogram(Shape):
    """Numbers now and before, in bins of equal width, or of equal ratio if they are spread over orders of magnitude."""

    edges: list[Float32]
    now: list[Float32]
    """The share of the numbers in each bin; those beyond the edges are in the outermost bins."""
    before: list[Float32] | None = None


class FieldAnswer(Answer):
    """One field of the records, now and before."""

    until: Moment
    field: InputView
    against: str
    """What it is compared with: `before`, `day`, `week`, `export`, or a time."""
    hour: Moment | None = None
    """When the hour began that it is compared with, by event time; left out for `before`."""
    apart: Float32 | None = None
    """How far it lies from that, as a difference of shares, from 0 to 1."""
    before: PortraitView | None = None
    """How it was there. For `before`, that is before its change, or in the windows before; left out until there are
    enough."""
    histogram: Histogram | None = None
    """Of numbers."""
    top: list[TopValue] | None = None
    """Of texts."""


def unread_of(view: InputsView) -> list[UnreadView]:
    """Return the fields that nobody reads."""
    return [_unread(one) for one in view.unread]


def _unread(one: UnreadField) -> UnreadView:
    partition, offset, time_ms = one.began if one.vanished is None else one.ended
    return UnreadView(
        field=one.source,
        types={kind: count / one.records for kind, count in sorted(one.types.items(), key=lambda each: -each[1])},
        share=one.share,
        appeared=event_moment(time_ms) if one.appeared is not None and one.vanished is None else None,
        vanished=None if one.vanished is None else event_moment(time_ms),
        partition=partition,
        offset=offset,
    )


def inputs_of(view: InputsView) -> Iterator[InputView]:
    """Yield the fields: those that have changed first, then those that are further off than they usually are."""

    def worst(at: int) -> tuple[bool, float]:
        changed = view.changed.get(view.fields[at].name)
        return changed is None, -(float(view.unusual[at]) if changed is None else changed.effect)

    return (input_of(view, at) for at in sorted(range(len(view.fields)), key=worst))


def input_of(view: InputsView, at: int) -> InputView:
    """Return the field at this place."""
    field = view.fields[at]
    changed = view.changed.get(field.name)
    return InputView(
        **portrait_of(view.now_of(at)).model_dump(),
        field=field.name,
        kind="text" if field.text else "number",
        distance=view.distance(at),
        changed=None if changed is None else _change_of(changed),
        set_aside=view.refused.get(field.source, {}),
        cut=view.cut.get(field.name, 0),
    )


def portrait_of(portrait: Portrait) -> PortraitView:
    """Return what a portrait shows."""
    return PortraitView(
        missing=portrait.missing,
        distinct=portrait.distinct,
        quantiles={name: portrait.quantile(share) for name, share in QUANTILES.items()} if portrait.bounds else None,
        mean=portrait.mean,
        length=portrait.length,
    )


def _change_of(changed: Changed) -> InputChange:
    return InputChange.model_validate(
        {
            "cause": changed.cause.name.lower(),
            "text": changed.text,
            "distance": changed.effect,
            "since": event_moment(changed.since_ms),
            "partition": changed.partition,
            "offset": changed.offset,
            "first": changed.first,
        }
    )


def histogram_of(now: Portrait, before: Portrait | None) -> Histogram | None:
    """Return numbers now and before in the same bins; None if there are none."""
    both = [one for one in (now, before) if one is not None and one.bounds]
    if not both:
        return None
    low, high = min(one.quantile(1 / 64) for one in both), max(one.quantile(63 / 64) for one in both)
    if low == high:
        beside = max(0.5, 1e-6 * abs(low))
        low, high = max(low - beside, -_GREATEST), min(low + beside, _GREATEST)
    if 0 < low < high / _WIDE:  # of what is spread over orders of magnitude all would be in one bin
        edges = np.geomspace(low, high, _BINS + 1)
    else:
        edges = 2 * np.linspace(low / 2, high / 2, _BINS + 1)  # whose ends may be further apart than any number

    def shares(one: Portrait | None) -> list[float] | None:
        if one is None or not one.bounds:
            return None
        reached = one.up_to(edges)
        reached[0], reached[-1] = 0.0, 1.0
        return [float(share) for share in np.diff(reached)]

    return Histogram(edges=edges.tolist(), now=shares(now) or [0.0] * _BINS, before=shares(before))


def top_of(now: Portrait, before: Portrait | None, *, values: bool) -> list[TopValue]:
    """Return the most frequent values of a text, now or before; without `values` their shares alone."""
    then: Mapping[bytes, float] = {} if before is None else before.top
    every = sorted({*now.top, *then}, key=lambda value: -max(now.top.get(value, 0.0), then.get(value, 0.0)))
    return [
        TopValue(
            value=value.decode("utf-8", "replace")[:_LONGEST_VALUE] if values else None,
            share=now.top.get(value, 0.0),
            before=None if before is None else then.get(value, 0.0),
        )
        for value in every[:_TOP]
    ]
