"""Which member of a group this process is, and how long it waits for the others. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from millrace.training.telemetry.group_report import CHIEF, member_name


@dataclass(frozen=True, slots=True, kw_only=True)
class Membership:
    """The place of this process in its group."""

    index: int
    addresses: Sequence[str]
    """Where each member listens for the others, by its number."""
    timeout_s: float
    """How long the others may take in one exchange or step before they count as lost."""

    @property
    def workers(self) -> int:
        """How many members there are."""
        return len(self.addresses)

    @property
    def is_chief(self) -> bool:
        """Whether this member is the chief."""
        return self.index == CHIEF

    @property
    def name(self) -> str:
        """What messages call this member."""
        return member_name(self.index)
