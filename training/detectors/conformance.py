"""What every detector keeps: the tests ask it of ours, `millrace validate` of those of users.

1. Two objects of the class that are given the same mark the same.
2. A state that is saved after any call, and brought back as a checkpoint does, gives the same marks and the same state.
3. Sums of NaN, and calls without a score, raise nothing, and do not make it blind to a change that it marks otherwise.
4. What it is given it does not change, and what it returns are marks whose facts are JSON values.
"""

import json
import math
import random
from collections.abc import Callable, Iterator, Sequence

from millrace.consumers.records import Partition
from millrace.pipelines.stream.blocks import Span
from millrace.training.detectors.detector import CallEnd, CallSums, Detector, Mark
from millrace.training.detectors.detectors import remembered, told
from millrace.training.errors import gist

CALLS, CHANGE_AT = 600, 300
"""Calls of the stream that a detector is tried on, and where its loss rises to ten times as much."""
_RECORDS = 256
_CUTS = (0, 1, 7, CHANGE_AT - 1, CHANGE_AT, CHANGE_AT + 1, CHANGE_AT + 20, CALLS - 1)
_HOLES = (3, 4, 50, CHANGE_AT, CHANGE_AT + 3)


def complaints(make: Callable[[], Detector]) -> Iterator[str]:
    """Run the detector over a stream that changes, and yield a sentence for each claim that does not hold."""
    whole, holed = _stream(()), _stream(_HOLES)
    try:
        first, second = make(), make()
        marks, state = _run(first, whole), _state(first)
        if (_run(second, whole), _state(second)) != (marks, state):
            yield "two of it that are given the same mark differently: it must go by no clock, and draw nothing"
            return
        for cut in _CUTS:
            before, after = make(), make()
            begun = _run(before, whole[:cut])
            after.load(remembered(before.saved()))
            if (begun + _run(after, whole[cut:]), _state(after)) != (marks, state):
                yield f"its state, saved after {cut} calls and loaded, does not give the same marks; save all of it"
                break
    except (Exception, SystemExit) as error:  # noqa: BLE001 - the user's own code may raise anything
        yield f"it raised {gist(error)}"
        return
    try:
        holes = make()
        found = _run(holes, holed)
        again = make()
        again.load(remembered(holes.saved()))
    except (Exception, SystemExit) as error:  # noqa: BLE001 - as above
        yield f"sums of NaN break it: it raised {gist(error)}"
        return
    if any(at >= CHANGE_AT for at, _ in marks) and not any(at >= CHANGE_AT for at, _ in found):
        yield "sums of NaN blind it: it does not mark the change that it marks without them"


def _run(detector: Detector, stream: Sequence[tuple[int, CallSums, CallEnd]]) -> list[tuple[int, str]]:
    """Return what it marks, by the number of the call."""
    found = []
    for number, sums, at in stream:
        for mark in detector.update(sums, at):
            if not isinstance(mark, Mark):
                raise TypeError(f"update returned a {type(mark).__name__} among its marks, not a Mark")
            found.append((number, f"{mark.text} {sorted(told(mark).items())}"))
    return found


def _state(detector: Detector) -> str:
    return json.dumps(detector.saved(), sort_keys=True)


def _stream(holes: Sequence[int]) -> list[tuple[int, CallSums, CallEnd]]:
    """Return calls with a noisy loss that rises once; at the holes it is NaN, or nothing was scored."""
    draws, calls = random.Random(1), []  # noqa: S311 - the same numbers each time, and no secret
    for number in range(CALLS):
        mean = draws.gauss(0.4 if number < CHANGE_AT else 4.0, 0.05)
        loss, scored, records = mean * _RECORDS, _RECORDS, _RECORDS
        if number in holes:
            loss, scored = (math.nan, _RECORDS) if number % 2 else (0.0, 0)
            records = scored
        metrics = {"accuracy": math.nan if number in holes else 1 / (1 + mean), "auc": math.nan}
        sums = CallSums(records=records, scored=scored, loss=loss, score=dict(metrics).copy)
        end = (number + 1) * _RECORDS
        span = Span(partition=Partition("clicks", 0), index=0, start=end - _RECORDS, end=end)
        calls.append((number, sums, CallEnd(step=number + 1, records=end, newest_ms=1000 * number, spans=(span,))))
    return calls
