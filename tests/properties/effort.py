"""The effort of a property test: so many examples in the gate, many times that in a proof."""

from hypothesis import HealthCheck, settings

PROOF = "proof"
_TIMES = 16
"""How many examples a proof tries for each one of the gate's."""
_SLOW_IS_FINE = (HealthCheck.too_slow, HealthCheck.data_too_large)


def tried(examples: int, *, steps: int = 50) -> settings:
    """Return settings for a property that deserves this many examples in the gate; `steps` is for machines."""
    proof = settings.get_current_profile_name() == PROOF
    return settings(
        max_examples=examples * (_TIMES if proof else 1),
        stateful_step_count=steps * (2 if proof else 1),
        deadline=None,
        derandomize=not proof,
        database=None,
        print_blob=True,
        suppress_health_check=_SLOW_IS_FINE,
    )
