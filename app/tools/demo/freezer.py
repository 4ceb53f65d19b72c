"""Freezes a copy of the model where a drift begins, and has the judge score it from there.

The weights are those of the newest checkpoint that has seen nothing of the drift; its file is copied, because
checkpoints are pruned. Runs on the caller's thread; a second thread reads the judge's answers.
"""

import json
import shutil
import threading
from pathlib import Path
from queue import SimpleQueue

from millrace.app.tools.child_process import SupervisedProcess
from millrace.app.tools.demo import drifting_stream
from millrace.app.tools.demo.drifting_stream import Drift
from millrace.app.tools.demo.frozen_judge import PARTITION
from millrace.app.tools.demo.report import AccuracyHistory
from millrace.app.tools.demo.workspace import LIVE_WINDOW_S, Workspace
from millrace.consumers.errors import MillraceError
from millrace.consumers.records import Partition
from millrace.training.checkpoints.store import CheckpointStore

_WEIGHTS = "model.safetensors"


class Freezer:
    """Sends requests to the judge and takes in its scores."""

    def __init__(self, home: Workspace, judge: SupervisedProcess) -> None:
        self._home, self.judge = home, judge
        self._store = CheckpointStore(home.checkpoints)
        self._requested = 0
        self._answers: SimpleQueue[str] = SimpleQueue()
        threading.Thread(target=self._listen, name="judge", daemon=True).start()

    def look(self, history: AccuracyHistory, at_s: float) -> None:
        """Request what is to be judged now; take in the scores that have come."""
        while not self._answers.empty():
            history.judged(json.loads(self._answers.get()))
        past = history.aftermath(at_s)
        if past is None or past.drift.number == self._requested:
            return
        self._requested = past.drift.number
        weights = self._home.frozen / f"drift-{past.drift.number}.safetensors"
        past.checkpoint = self._freeze(past.drift, weights)
        if past.checkpoint is not None:
            since_s = max(past.drift.begins_s, at_s - 2 * LIVE_WINDOW_S)
            offset = drifting_stream.first_offset(PARTITION, since_s)
            request = {"drift": past.drift.number, "file": str(weights), "offset": offset}
            self.judge.send_line(json.dumps(request))

    def _freeze(self, drift: Drift, target: Path) -> int | None:
        """Keep the weights for this drift; return their checkpoint, or None if all that are left saw the drift."""
        source = target.with_suffix(".checkpoint")
        if target.exists() and source.exists():
            return int(source.read_text())
        for number in reversed(self._store.folder.numbers()):
            if self._is_from_before(number, drift):
                shutil.copy(self._store.folder.checkpoint(number) / _WEIGHTS, target)
                source.write_text(str(number))
                return number
        return None

    def _is_from_before(self, number: int, drift: Drift) -> bool:
        try:
            positions = self._store.manifest(number).positions
        except MillraceError:  # pruned a moment ago
            return False
        return all(
            position <= drifting_stream.first_offset(Partition.parse(name).number, drift.begins_s)
            for name, position in positions.items()
        )

    def _listen(self) -> None:
        assert self.judge.output is not None
        for line in self.judge.output:
            self._answers.put(line)
