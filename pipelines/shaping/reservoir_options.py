"""What a reservoir holds and gives, known without TensorFlow."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ReservoirOptions:
    """A memory of what was learnt."""

    size: int
    """The most rows that it holds."""
    share: float
    """Of all rows that are learnt, how many are of the past."""
    rows: int | None = None
    """How many of them are learnt beside each batch; None for as many as make the share, 0 to remember alone."""

    def beside(self, batch_size: int, replicas: int) -> int:
        """Return how many rows are learnt beside a batch, the same number on each replica."""
        if self.rows is not None:
            return self.rows
        return max(1, round(self.share / (1 - self.share) * batch_size / replicas)) * replicas
