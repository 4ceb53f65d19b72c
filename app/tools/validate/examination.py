"""Runs all checks in order, and continues after a failure wherever that makes sense."""

from collections.abc import Generator, Iterator
from pathlib import Path

from millrace.app.service.kept_sample import RecordSamples
from millrace.app.service.step_numbers import as_recorded
from millrace.app.settings import Settings, load
from millrace.app.settings.yaml_file import SettingsError
from millrace.app.tools.validate.check import CheckResult, fail, ok, skip, warn
from millrace.app.tools.validate.checkpoint_check import checkpoint_check, folder_checks
from millrace.app.tools.validate.eager_check import eager_check
from millrace.app.tools.validate.kafka_check import Bounds, kafka_checks
from millrace.app.tools.validate.model_check import build_checks, golden_check, model_checks
from millrace.app.tools.validate.plugin_checks import detector_checks, writer_checks
from millrace.app.tools.validate.record_check import format_checks
from millrace.app.tools.validate.settings_checks import (
    archive_check,
    certificate_check,
    export_check,
    group_check,
    read_tokens_check,
    sender_checks,
    tokens_check,
)
from millrace.consumers.errors import ConfigError
from millrace.training.checkpoints.folder import Folder
from millrace.training.model.probes import ReadSample


def examine_file(path: Path) -> Iterator[CheckResult]:
    """Check a config file and everything that it names, one thing after another."""
    settings = yield from _settings_checks(path)
    if settings is None:
        return
    yield from format_checks(settings.records)
    yield tokens_check(settings)
    if settings.api.read_tokens_dir is not None:
        yield read_tokens_check(settings.api.read_tokens_dir)
    if settings.api.tls is not None:
        yield certificate_check(settings.api.tls)
    yield from sender_checks(settings)
    bounds = yield from kafka_checks(settings)
    sample = None if bounds is None else bounds.sample
    settings = _settled(settings, bounds)
    if settings.archive.path is not None:
        yield archive_check(settings.archive.path)
    yield from detector_checks(settings.training.detector_places)
    if len(writers := settings.export.writers) > 1:
        yield export_check(writers)
    learner = yield from model_checks(settings, (lambda: sample, _kept(settings)))
    if settings.golden.used:
        yield golden_check(settings, learner)
    yield from writer_checks(writers, learner)
    yield from folder_checks(settings, learner, bounds)


def examine_against(path: Path, number: int | None) -> Iterator[CheckResult]:
    """Check the model against a checkpoint; the newest where none is named. Neither Kafka nor the lock is asked."""
    settings = yield from _settings_checks(path)
    if settings is None:
        return
    settings = as_recorded(settings, number)
    learner = yield from build_checks(settings, (_kept(settings),))
    if learner is None:
        yield skip("checkpoint", "there is no model to compare one with")
    else:
        yield checkpoint_check(settings, learner, number)


def examine_eagerly(path: Path) -> Iterator[CheckResult]:
    """Run the model's functions on a sample of the records, line by line."""
    settings = yield from _settings_checks(path)
    if settings is None:
        return
    bounds = yield from kafka_checks(settings)
    sample = None if bounds is None else bounds.sample
    settings = _settled(settings, bounds)
    yield eager_check(settings, (lambda: sample, _kept(settings)))


def _settled(settings: Settings, bounds: Bounds | None) -> Settings:
    """Return the settings with the numbers of a step with which a start would begin, as far as that is known."""
    return as_recorded(settings) if bounds is None or bounds.settings is None else bounds.settings


def _kept(settings: Settings) -> ReadSample:
    """Return what reads the sample that a start has kept."""
    return RecordSamples(settings, Folder(settings.checkpoints.path / settings.name)).kept


def _settings_checks(path: Path) -> Generator[CheckResult, None, Settings | None]:
    try:
        loaded = load(path)
    except SettingsError as error:
        yield from (fail("settings", ConfigError(problem)) for problem in error.problems)
        return None
    except ConfigError as error:
        yield fail("settings", error)
        return None
    yield ok("settings", f"{path} describes {loaded.settings.name}")
    yield from (warn("settings", warning) for warning in loaded.warnings)
    if loaded.settings.scale.workers > 1:
        yield group_check(loaded.settings)
    return loaded.settings
