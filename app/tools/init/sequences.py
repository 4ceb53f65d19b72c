"""The key whose last records a draft learns from as a sequence, if the records show one. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from millrace.app.tools.init.column_roles import Roles
from millrace.app.tools.init.columns import ColumnKind, ColumnLook
from millrace.app.tools.init.record_look import Row

LENGTH = 20
"""The records of a drafted sequence."""
_FEWEST_KEYS, _EACH_COMES = 5, 3
"""A key has at least this many values, and each comes this often on average."""
_STEPS = frozenset({ColumnKind.NUMBER, ColumnKind.CATEGORY, ColumnKind.FLAG, ColumnKind.TEXT, ColumnKind.NUMBERS})
"""What a recurrent layer is given step by step; of the others it is the newest record's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sequences:
    """How records become sequences."""

    key: ColumnLook
    distinct: int
    """The values of the key that were seen."""
    whole: bool
    """Whether all records of a key are in one partition, so that the sequences miss none."""

    def steps(self, features: Sequence[ColumnLook]) -> list[ColumnLook]:
        """Return the features that become sequences."""
        return [one for one in features if one.kind in _STEPS and one.source != self.key.source]


def sequences_of(rows: Sequence[Row], roles: Roles, partitions: int) -> Sequences | None:
    """Return the sequences that a draft can learn from; None if no key repeats, or nothing would be in them."""
    twins = {column.twin for column in roles.left_out if column.source == "$key"}
    for column in roles.features:
        keys = [row[column.source] for row in rows if isinstance(row.get(column.source), str | int)]
        distinct = len({*keys})
        full = len(keys) > len(rows) / 2 and not any(isinstance(key, bool) for key in keys)
        exact = column.kind in {ColumnKind.TEXT, ColumnKind.CATEGORY}
        if full and exact and column.names_things and _FEWEST_KEYS <= distinct <= len(keys) / _EACH_COMES:
            whole = partitions == 1 or column.source == "$key" or column.source in twins
            found = Sequences(key=column, distinct=distinct, whole=whole)
            return found if found.steps(roles.features) else None
    return None
