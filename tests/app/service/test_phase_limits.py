"""The limits of the phases: by the settings, and by what follows from them."""

from pathlib import Path

import pytest

from millrace.app.service.phase_limits import SETTINGS, phase_limits
from millrace.app.settings import Settings, load
from millrace.training.telemetry.phases import Phase, PhaseLimits, Phases


def _settings(folder: Path, **environ: str) -> Settings:
    config = folder / "clicks.yaml"
    config.write_text(
        "name: clicks\n"
        "kafka: {bootstrap_servers: [localhost:9092], topics: [clicks]}\n"
        "records: {format: raw, features: {id: int64}, label: {clicked: float32}}\n"
        "model: {build: ./model.py:build_model}\n"
        "checkpoints: {path: ./checkpoints}\n"
    )
    return load(config, {f"MILLRACE_{name}": value for name, value in environ.items()}).settings


def test_limits_are_the_usual_ones_by_default_and_waiting_has_that_of_a_call(
    tmp_path: Path,
) -> None:
    limits = phase_limits(_settings(tmp_path)).limits
    assert limits == {**PhaseLimits.usual().limits, Phase.IDLE: limits[Phase.TRAINING]}


@pytest.mark.parametrize(
    ("name", "phase"),
    [
        ("LIMITS__TRACE", Phase.TRACING),
        ("LIMITS__RESTORE", Phase.RESTORING),
        ("LIMITS__CALL", Phase.TRAINING),
        ("LIMITS__CALL", Phase.IDLE),
    ],
)
def test_a_phase_hangs_past_the_limit_that_its_setting_gives_and_no_other_does(
    tmp_path: Path, name: str, phase: Phase
) -> None:
    limits = phase_limits(_settings(tmp_path, **{name: "17m"})).limits
    assert limits[phase] == 17 * 60
    assert SETTINGS[phase] == name.lower().replace("__", ".")
    usual = phase_limits(_settings(tmp_path)).limits
    assert {SETTINGS[other] for other in limits if limits[other] != usual[other]} == {SETTINGS[phase]}


def test_a_long_trace_has_a_limit_of_its_own(tmp_path: Path) -> None:
    now = [0.0]
    phases = Phases(phase_limits(_settings(tmp_path, LIMITS__TRACE="1h", LIMITS__CALL="10s")), lambda: now[0])
    phases.enter(Phase.TRACING)
    now[0] += 3600
    assert not phases.snapshot().hung
    phases.enter(Phase.TRAINING)
    now[0] += 10
    assert not phases.snapshot().hung
    now[0] += 1
    assert phases.snapshot().hung


def test_a_stop_may_take_as_long_as_its_grace_allows(tmp_path: Path) -> None:
    assert phase_limits(_settings(tmp_path, STOP__GRACE="10m")).limits[Phase.STOPPING] > 600
