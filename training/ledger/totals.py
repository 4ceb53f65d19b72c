"""The tally: what a process has settled, in all of its incarnations. It only grows, whatever is gone back to.

Owns the counts between two calls, frozen; the ledger replaces them under its lock. Lasts as long as the process.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from consumers.reasons import Reason
from consumers.records import Partition
from pipelines.blocks import Span


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessTotals:
    """What became of the offsets that this process has settled; what a rewind reads again counts again."""

    learnt: int = 0
    set_aside: Mapping[Reason, int] = field(default_factory=dict)
    skipped: int = 0
    gaps: int = 0
    lost: int = 0
    truncated: Mapping[str, int] = field(default_factory=dict)
    """Records of which a list was cut to its bound, by feature; they count as learnt or set aside as any other."""

    @property
    def records(self) -> int:
        """Those of the offsets at which there was a record."""
        return self.learnt + sum(self.set_aside.values()) + self.skipped

    def plus(self, spans: Sequence[Span], refused: Mapping[Partition, Mapping[Reason, int]]) -> "ProcessTotals":
        """With a block's spans, so many of whose rows were set aside after all."""
        set_aside, truncated = Counter(self.set_aside), Counter(self.truncated)
        for counts in (*(span.set_aside for span in spans), *refused.values()):
            set_aside.update(counts)
        for span in spans:
            truncated.update(span.truncated)
        turned_down = sum(sum(counts.values()) for counts in refused.values())
        return ProcessTotals(
            learnt=self.learnt + sum(span.learnt for span in spans) - turned_down,
            set_aside=dict(set_aside),
            skipped=self.skipped + sum(sum(span.skipped.values()) for span in spans),
            gaps=self.gaps + sum(span.gaps for span in spans),
            lost=self.lost + sum(span.lost for span in spans),
            truncated=dict(truncated),
        )
