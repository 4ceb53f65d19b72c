"""Shaping: what a model learns from its rows, where that is to differ from the rows as they came.

The kinds stand here in the sequence in which rows pass through them; each is a section of the settings under its name.
Those of rows make rows of the records before the blocks. The others act on the rows of one batch, inside the compiled
call, between scoring and learning: what is scored is never shaped there, so the live metrics, their baselines and the
proof at a start see the rows as they came.
"""

from collections.abc import Mapping

from millrace.pipelines.shaping.balance.balance import BalanceSettings
from millrace.pipelines.shaping.golden import GoldenSettings
from millrace.pipelines.shaping.labels.options import LabelOptions
from millrace.pipelines.shaping.options import ReservoirSettings
from millrace.pipelines.shaping.shaper import ShapingSection
from millrace.pipelines.shaping.thinning import ThinningSettings
from millrace.pipelines.shaping.windows.windows import WindowSettings
from millrace.pipelines.stream.offset_counts import skip_under

# Each has a field of its name in app/settings/root.py, too. What is never learnt goes first. What is thinned out costs
# nothing more. Then sequences, so that they hold the records that get no label and those that balancing leaves out.
SHAPINGS: Mapping[str, type[ShapingSection]] = {
    "golden": GoldenSettings,
    "thinning": ThinningSettings,
    "windows": WindowSettings,
    "labels": LabelOptions,
    "balance": BalanceSettings,
    "reservoir": ReservoirSettings,
}
LEFT_OUT_BY_SHAPING = frozenset(name for name, kind in SHAPINGS.items() if kind.of_rows)
"""The settings that may leave records out of what is learnt, which are then skipped under these names."""
skip_under(LEFT_OUT_BY_SHAPING)
OTHER_COLUMNS = tuple(name for name, kind in SHAPINGS.items() if kind.other_columns)
"""The settings by which rows have other columns than the records that they are made of."""

__all__ = [
    "LEFT_OUT_BY_SHAPING",
    "OTHER_COLUMNS",
    "SHAPINGS",
    "BalanceSettings",
    "GoldenSettings",
    "LabelOptions",
    "ReservoirSettings",
    "ShapingSection",
    "ThinningSettings",
    "WindowSettings",
]
