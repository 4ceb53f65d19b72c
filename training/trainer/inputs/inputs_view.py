"""What is known of the inputs at the end of a window. It does not change, so any thread may read it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from millrace.pipelines.gates.input_gate import WatchedColumn
from millrace.training.trainer.inputs.changes import Changed
from millrace.training.trainer.inputs.distances import Columns, Floats, Reference
from millrace.training.trainer.inputs.hours import Hours
from millrace.training.trainer.inputs.open_window import WindowRows
from millrace.training.trainer.inputs.portraits import Portrait
from millrace.training.trainer.inputs.unread_fields import UnreadField


@dataclass(frozen=True, kw_only=True)
class InputsView:
    """What is known at the end of a window; it does not change."""

    fields: Sequence[WatchedColumn]
    numbers: int
    """How many of the fields are numbers; they come first."""
    compared: Columns
    """Some rows of the window."""
    rows: Callable[[], WindowRows]
    """Returns all of them."""
    then: Reference | None
    """None until there are enough windows."""
    effects: Floats
    """[field, cause]: how far each is apart."""
    unusual: Floats
    """By field: how much further it is than chance, a least effect and its own past explain."""
    changed: Mapping[str, Changed]
    refused: Mapping[str, Mapping[str, int]]
    """Records since checkpoint 0 that were set aside for a field, by reason."""
    cut: Mapping[str, int]
    """Records since then whose list was cut to its bound."""
    hours: Hours
    """Of the week before."""
    unread: Sequence[UnreadField]
    """Fields that nobody reads: what is news first, then by name."""
    looked_at: int
    """Records in which such fields were looked for, since checkpoint 0."""
    records: int
    """Of the window."""
    ended_ms: int

    def distance(self, at: int) -> float:
        """Return how far a field lies from the windows before."""
        return float(self.effects[at].max(initial=0.0))

    @cached_property
    def now(self) -> Columns:
        """All rows of the window; sorted when they are first asked for."""
        rows = self.rows()
        return Columns.of(rows.numbers, rows.texts)

    def now_of(self, at: int) -> Portrait:
        """Return what a field is like."""
        return Portrait.of(self.now, self.numbers, at)

    def before(self, at: int) -> Portrait | None:
        """Return what a field was like: before its change, or in the windows before."""
        if (changed := self.changed.get(self.fields[at].name)) is not None:
            return changed.before
        return None if self.then is None else Portrait.of_reference(self.then, self.numbers, at)
