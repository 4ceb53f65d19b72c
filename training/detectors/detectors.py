"""The detectors of a training: which there are, what they mark, and their part of a checkpoint.

Owns the part `detectors`: by the name that the settings have for it, the state of each detector, as a text that keeps
every bit. A detector without a state there, as in a checkpoint from before it was named, begins as it was made; so does
one that cannot read its state, since its code may be another by now. One that raises is reported and left out until the
next start. Runs on the trainer's thread.
"""

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from millrace.training.checkpoints.parts import PartState
from millrace.training.detectors.detector import CallEnd, CallSums, Detector, Mark
from millrace.training.detectors.drift import LossRise
from millrace.training.detectors.figures import DetectorFigures
from millrace.training.errors import gist
from millrace.training.model.setup.model_file import load_class
from millrace.training.telemetry.events import EventKind, ReportEvent, Severity, ignore_event
from millrace.training.telemetry.live_metrics import State, Sums
from millrace.training.telemetry.watcher import Call, Watcher

log = logging.getLogger(__name__)
SETTING = "training.detectors"
NAME = "detectors"
DETECTORS: Mapping[str, type[Detector]] = {"drift": LossRise}
"""Those of ours, by the names that the settings know."""
_EVENTS_A_CALL = 1
"""More marks of a detector at one place are counted, and are no events: those would push other events out."""
_RESERVED = frozenset({"kind", "text", "severity", "detector", "step", "records"})
"""What an event of a mark has already."""


def detector_of(name: str) -> Detector:
    """Return the detector of a name, or of a class in a file, as in /models/adwin.py:Adwin; ModelError otherwise."""
    if (known := DETECTORS.get(name)) is not None:
        return known()
    path, _, class_name = name.rpartition(":")
    found: Detector = load_class(Path(path), class_name, SETTING, Detector)
    return found


class Detectors(Watcher):
    """All detectors of one training."""

    name = NAME

    def __init__(
        self,
        places: Mapping[str, str],
        results: Callable[[Sequence[State]], Mapping[str, float]],
        report: ReportEvent = ignore_event,
        pause: Callable[[str], object] | None = None,
    ) -> None:
        """`places` says where each is, by its name; `results` makes values of a call's metric states, NaN of none.

        `pause`, if given, pauses the training for this reason, at each mark.
        """
        self._results, self._report, self._pause = results, report, pause
        self._watching = {name: detector_of(place) for name, place in places.items()}
        self._fresh = self._saved()
        self._marks = dict.fromkeys(places, 0)

    def called(self, call: Call) -> None:
        """Have each detector take in a call that has scored anything, and report what it marks."""
        if not call.scored:
            return
        total = Sums()
        total.add(*call.scored)
        sums = CallSums(
            records=total.records,
            scored=total.scored,
            loss=total.loss,
            score=lambda: self._results(total.states if total.records else ()),
        )
        at = CallEnd(step=call.step, records=call.records, newest_ms=call.facts.newest_ms, spans=call.facts.spans)
        for name, detector in [*self._watching.items()]:
            try:
                found = [(str(mark.text), told(mark)) for mark in detector.update(sums, at)]
            except (Exception, SystemExit) as error:  # noqa: BLE001 - the user's own code may raise anything
                self._leave_out(name, error)
                continue
            self._marks[name] += len(found)
            for text, facts_of_it in found[:_EVENTS_A_CALL]:
                more = {**facts_of_it, "detector": name, "step": call.step, "records": call.records}
                self._report(EventKind.MARK, f"{name}: {text}, at step {call.step:,}.", **more)
                if self._pause is not None:
                    self._pause(f"{name}: {text}")

    def figures(self) -> Mapping[str, DetectorFigures]:
        """Return how much each has marked."""
        return {name: DetectorFigures(marks=marks) for name, marks in self._marks.items()}

    def snapshot(self) -> PartState:
        """Copy the states."""
        return PartState(facts=self._saved())

    def restore(self, state: PartState) -> None:
        """Take the states back, those that are there and can be read."""
        for name, detector in [*self._watching.items()]:
            try:
                if (text := state.facts.get(name)) is not None:
                    detector.load(json.loads(text))
                    continue
            except (Exception, SystemExit) as error:  # noqa: BLE001 - the user's own code may raise anything
                log.warning("%s: %s does not take its state in the checkpoint: %s", SETTING, name, gist(error))
            try:
                detector.load(json.loads(self._fresh[name]))
            except (Exception, SystemExit) as error:  # noqa: BLE001 - as above
                self._leave_out(name, error)

    def _saved(self) -> dict[str, str]:
        found: dict[str, str] = {}
        for name, detector in [*self._watching.items()]:
            try:
                found[name] = json.dumps(detector.saved())
            except (Exception, SystemExit) as error:  # noqa: BLE001 - the user's own code may raise anything
                self._leave_out(name, error)
        return found

    def _leave_out(self, name: str, error: BaseException) -> None:
        """Go on without a detector: a defect of what only watches must not stop the training."""
        self._watching.pop(name, None)
        log.error("%s: %s raised, and is left out until the next start", SETTING, name, exc_info=error)
        self._report(
            EventKind.DETECTOR_FAILED,
            f"{name} raised {gist(error)}, and is left out until the next start: run `millrace validate`.",
            Severity.WARNING,
            detector=name,
        )


def told(mark: Mark) -> dict[str, Any]:
    """Return a mark's facts as an event keeps them; TypeError or ValueError if it cannot, or if a name is taken."""
    facts: dict[str, Any] = json.loads(json.dumps(dict(mark.facts)))
    if taken := sorted(_RESERVED & facts.keys()):
        raise ValueError(f"a mark's facts name {', '.join(taken)}, which its event has already")
    return facts


def remembered(state: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the state of a detector as a checkpoint brings it back."""
    found: Mapping[str, Any] = json.loads(json.dumps(state))
    return found
