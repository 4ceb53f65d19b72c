"""Which checkpoints stay, by the settings: the same for the trainer as for a rewind while no trainer runs."""

from app.settings import Settings
from training.checkpoints.policies import KeepAny, KeepHourly, KeepLast, KeepPolicy


def keep_policy(settings: Settings) -> KeepPolicy:
    """Return the policy that `checkpoints.keep` describes."""
    keep = settings.checkpoints.keep
    return KeepAny([KeepLast(keep.last), KeepHourly(keep.hourly)])
