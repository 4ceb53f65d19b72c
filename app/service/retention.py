"""Which checkpoints stay, by the settings: the same for the trainer as for an order that is given while none runs."""

from app.settings import Settings
from training.checkpoints.policies import KeepAny, KeepHourly, KeepLast, KeepPolicy


def keep_policy(settings: Settings) -> KeepPolicy:
    """What `checkpoints.keep` comes to."""
    keep = settings.checkpoints.keep
    return KeepAny([KeepLast(keep.last), KeepHourly(keep.hourly)])
