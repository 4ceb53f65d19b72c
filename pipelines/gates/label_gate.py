"""The gate of labels: it holds records until they are due, and every label that may belong to them has been read."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from millrace.consumers.records import Chunk, Partition
from millrace.pipelines.gates.gate import HeldBy, LearningHold
from millrace.pipelines.shaping.labels.join import times_of
from millrace.pipelines.shaping.labels.label_reader import LabelReader
from millrace.pipelines.shaping.labels.rules import JoinRules
from millrace.pipelines.stream.decode import Decoded
from millrace.pipelines.stream.slices import SkipRange

_STEP_MS = 1_000
"""Records that are not due are decoded together where their times differ by less."""


class LabelGate:
    """Waiting is its work; it is a hold only where nothing comes for far too long."""

    def __init__(
        self,
        rules: JoinRules,
        reader: LabelReader,
        rivals: LabelReader | None = None,
        away: Callable[[], str | None] = lambda: None,
    ) -> None:
        """`rivals` reads all records ahead, where a label belongs to one of its key.

        `away` returns why Kafka does not answer the readers, and None while it does.
        """
        self._rules, self._reader, self.away = rules, reader, away
        self._readers = (reader,) if rivals is None else (reader, rivals)

    @property
    def through(self) -> int:
        """The time up to which labels, and rivals, have been read."""
        return min(reader.clocks.through() for reader in self._readers)

    def begin(
        self,
        positions: Mapping[Partition, int],  # noqa: ARG002 - it holds nothing
        skips: Sequence[SkipRange] = (),
    ) -> None:
        """Begin a stream; nothing is held. A command may skip labels too."""
        self._reader.skip([skip for skip in skips if skip.partition.topic in self._rules.topics])

    def admits(self, decoded: Decoded) -> bool:
        """Return whether all labels of a chunk's records have been read. Raise what has ended the reading."""
        if not len(decoded):
            return True
        due = int(times_of(decoded, self._rules.early_ms).max()) + self._rules.within_ms
        return min([reader.through(due) for reader in self._readers]) >= due

    def held(self) -> LearningHold | None:
        """Return that no label has come for far too long; None where records wait as they are meant to."""
        silent_ms = self._reader.silent_ms
        if not silent_ms:
            return None
        topics = ", ".join(self._rules.topics)
        silent = f"for {silent_ms / 1000:,.0f} s"
        if self._reader.silence.any_came:
            why = f"no label has come {silent} on {topics}, which is far longer than at other times"
        else:
            why = f"no label has come at all on {topics}, and records have waited for one {silent}"
        return LearningHold(
            by=HeldBy.LABELS,
            why=why,
            fix="look at what writes the labels; if there are truly none, `millrace resume --assume-absent`",
        )

    def let_pass(self, ends: Mapping[Partition, int]) -> bool:  # noqa: ARG002 - it goes by time
        """Let nothing pass: that labels do not come is never taken for an absence without being told so."""
        return False

    def assume_absent(self) -> None:
        """Take the silence up to now for an absence of labels, because a person says so."""
        self._reader.assume_absent()

    def portions(self, chunk: Chunk) -> list[Chunk]:
        """Cut a chunk so that records that are due need not wait for those that are not."""
        if len(chunk) < 2:
            return [chunk]
        reached = np.maximum.accumulate(chunk.timestamps)
        due = self.through - self._rules.within_ms
        if reached[-1] <= due:
            return [chunk]
        steps = np.maximum(reached - max(due, int(reached[0]) - 1), 0) // _STEP_MS
        cuts = (np.flatnonzero(np.diff(np.where(reached <= due, -1, steps))) + 1).tolist()
        parts, rest = list[Chunk](), chunk
        for at in cuts:
            part, rest = rest.split(int(chunk.offsets[at]))
            parts.append(part)
        return [*parts, rest]
