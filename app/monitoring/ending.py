"""What a run that has ended did: a line for the log. Pure; runs anywhere."""

from millrace.app.monitoring.snapshot import Snapshot
from millrace.app.monitoring.verdict import how_well


def ending_of(snapshot: Snapshot) -> str | None:
    """Return what this process learnt, how well, and where it is saved; None where it ended before it learnt."""
    posting = snapshot.posting
    if posting is None:
        return None
    counts = snapshot.ledger.tally
    parts = [f"learnt {counts.learnt:,} records" if counts.learnt else "there was nothing to learn"]
    if counts.set_aside:
        reasons = ", ".join(f"{count:,} {reason}" for reason, count in counts.set_aside.items())
        parts.append(f"set aside {reasons}")
    if skipped := sum(counts.skipped.values()):
        parts.append(f"skipped {skipped:,} offsets")
    sentences = [f"{', '.join(parts)}.", *how_well(posting.live)]
    if posting.last_save is not None:
        sentences.append(f"Checkpoint {posting.last_save.manifest.number} holds all of it.")
    return " ".join(sentences)
