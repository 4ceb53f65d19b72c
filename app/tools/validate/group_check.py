"""The check of a group of workers: its portions of a batch, its addresses, and this host's place in it. Pure."""

from collections import Counter

from millrace.app.settings import Settings
from millrace.app.tools.validate.check import CheckResult, fail, ok, warn
from millrace.consumers.errors import ConfigError

_NAME = "group"


def group_check(settings: Settings, host: str | None = None) -> CheckResult:
    """Check what `scale` says of a group of several workers; `host` None is this machine's name."""
    scale = settings.scale
    twice = [address for address, times in Counter(scale.everyone).items() if times > 1]
    if twice:
        return fail(
            _NAME, ConfigError(f"scale.addresses: {twice[0]} is there more than once; each worker needs one of its own")
        )
    rows = settings.training.batch_size // scale.workers
    found = f"{scale.workers} workers, each with {rows} rows of every batch, meet at {', '.join(scale.everyone)}"
    try:
        index = scale.own_index(host)
    except ValueError as error:
        return warn(_NAME, f"{found}; a start on this host would be refused, as scale.index is not known: {error}")
    return ok(_NAME, f"{found}; this host is {'the chief' if index == 0 else f'worker {index}'}")
