"""What shapes the rows of a trainer by the settings, in the sequence in which it does."""

from millrace.app.settings import Settings, to_balance, to_row_schema, to_windows
from millrace.pipelines.shaping.balance.resampling import ResampleStates
from millrace.pipelines.shaping.row_states import RowStates
from millrace.pipelines.shaping.windows.windows import WindowStates


def row_states(settings: Settings) -> tuple[RowStates, ...]:
    """Return what remembers nothing yet: sequences first, so that they hold what is then left out."""
    layout, balance = to_windows(settings.windows, settings.records), to_balance(settings.balance, settings.records)
    states: list[RowStates] = [] if layout is None else [WindowStates(layout)]
    if balance is not None and balance.how == "resample":
        states.append(ResampleStates(balance, to_row_schema(settings.windows, settings.records)))
    return tuple(states)
