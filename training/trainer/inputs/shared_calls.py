"""The records of a member's calls on their way to the chief of its group, which watches those of all members. Pure.

Of a call the rows that may be among a window's least hashes are sent, and of all that were sampled the event times, as
they say when a window is over. So the chief's sample is that of one worker that had learnt the same records.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from millrace.consumers.reasons import Reason
from millrace.consumers.records import Partition
from millrace.pipelines.gates.input_gate import InputGate, InputSample, Sampled, SeenInputs, UnreadTypes
from millrace.pipelines.shaping.followed_states import packed, unpacked
from millrace.pipelines.stream.blocks import Span
from millrace.pipelines.stream.decode import Refused
from millrace.training.checkpoints.parts import PartState
from millrace.training.trainer.inputs.open_window import MOST_ROWS, WindowRows

SeenCall = Sequence[tuple[Span, Sequence[SeenInputs]]]
"""The spans of a call, each with what was seen of its records."""


def sent(calls: Sequence[SeenCall], gate: InputGate) -> PartState:
    """Return the calls of a member as arrays and facts."""
    spans, pieces, times = list[dict[str, Any]](), list[WindowRows](), list[Any]()
    for number, call in enumerate(calls):
        hashes = [seen.kept.sample.hashes[seen.rows] for _, some in call for seen in some]
        rows = sum(map(len, hashes))
        bound = None if rows <= MOST_ROWS else np.partition(np.concatenate(hashes), MOST_ROWS)[MOST_ROWS]
        for span, some in call:
            mine = [_rows_of(seen, bound) for seen in some]
            every = [seen.times for seen in some]
            refused = Counter((one.field, one.reason.value) for seen in some for one in seen.refused())
            pieces += mine
            times += every
            spans.append(
                {
                    "call": number,
                    "partition": str(span.partition),
                    "span": [span.start, span.end, span.records - span.filtered],
                    "truncated": dict(span.truncated),
                    "rows": sum(map(len, mine)),
                    "times": sum(map(len, every)),
                    "refused": [[*one, count] for one, count in refused.items()],
                    "unread": [list(one) for seen in some for one in seen.unread()],
                }
            )
    none = WindowRows.none(gate)
    columns = {
        name: np.concatenate([getattr(one, name) for one in (none, *pieces)])
        for name in ("hashes", "offsets", "times", "numbers", "texts")
    }
    return PartState(
        arrays={
            **{name: one for name, one in columns.items() if name != "texts"},
            **packed("texts", columns["texts"]),
            "sampled": np.concatenate([none.times, *times]),
        },
        facts={"calls": len(calls), "spans": spans},
    )


def _rows_of(seen: SeenInputs, bound: Any) -> WindowRows:
    """Return what was sampled, with hashes below the bound if there is one."""
    sample = seen.kept.sample
    which = np.arange(seen.rows.start, seen.rows.stop)
    if bound is not None:
        which = which[sample.hashes[seen.rows] < bound]
    columns = sample.hashes[which], np.zeros(len(which), np.int32), sample.offsets[which], sample.times[which]
    return WindowRows(*columns, *sample.rows(which))


def received(state: PartState, gate: InputGate) -> list[SeenCall]:
    """Return the calls that `sent` has written."""
    calls: list[list[tuple[Span, Sequence[SeenInputs]]]] = [[] for _ in range(state.facts["calls"])]
    for number, span, seen in _spans(state.facts["spans"], state.arrays, gate):
        calls[number].append((span, [seen]))
    return list(calls)


def _spans(
    spans: Sequence[Mapping[str, Any]], arrays: Mapping[str, Any], gate: InputGate
) -> Iterator[tuple[int, Span, SeenInputs]]:
    texts: Any = np.empty((len(arrays["hashes"]), 0), object)
    if gate.texts:
        texts = unpacked(arrays, "texts", (len(gate.texts),))
    row, time = 0, 0
    for one in spans:
        start, end, records = one["span"]
        rows, times = slice(row, row + one["rows"]), slice(time, time + one["times"])
        row, time = rows.stop, times.stop
        offsets, hashes, event_times = (arrays[name][rows] for name in ("offsets", "hashes", "times"))
        kept = Sampled(
            InputSample(offsets, hashes, event_times, [arrays["numbers"][rows]], texts[rows]),
            # They are counted, so that each may stand at the first offset.
            [Refused(start, Reason(reason), field) for field, reason, count in one["refused"] for _ in range(count)],
            [UnreadTypes(*each) for each in one["unread"]],
            arrays["sampled"][times],
        )
        span = Span(
            partition=Partition.parse(one["partition"]),
            index=0,
            start=start,
            end=end,
            learnt=records,
            truncated=one["truncated"],
        )
        yield one["call"], span, SeenInputs(kept, slice(0, len(hashes)), start, end)
