"""How long the trainer's phases may take before it counts as hung: by the settings, and by what follows from them.

Pure; runs anywhere. Phases without a setting have the limits of `PhaseLimits.usual`.
"""

from collections.abc import Mapping
from dataclasses import replace

from millrace.app.settings import Settings
from millrace.training.telemetry.phases import Phase, PhaseLimits

SETTINGS: Mapping[Phase, str] = {
    Phase.TRACING: "limits.trace",
    Phase.RESTORING: "limits.restore",
    Phase.TRAINING: "limits.call",
    Phase.IDLE: "limits.call",
    Phase.STOPPING: "stop.grace",
}
"""Which setting moves the limit of a phase."""
_GRACES = 4
"""A stop settles the save before, makes the last one and closes: each may take most of the grace."""


def phase_limits(settings: Settings) -> PhaseLimits:
    """Return the limits of every phase that has one.

    Waiting for a block has the limit of a call, because its records may be in `preprocess` meanwhile.
    """
    limits, usual = settings.limits, PhaseLimits.usual()
    wanted = {
        Phase.TRACING: limits.trace,
        Phase.RESTORING: limits.restore,
        Phase.TRAINING: limits.call,
        Phase.IDLE: limits.call,
        Phase.STOPPING: max(usual.limits[Phase.STOPPING], _GRACES * settings.stop.grace),
    }
    return replace(usual, limits={**usual.limits, **wanted})
