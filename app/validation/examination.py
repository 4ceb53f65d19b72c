"""The examination: all checks in order. Goes on after a failure wherever looking on makes sense."""

from collections.abc import Iterator
from pathlib import Path

from app.settings import load
from app.settings.errors import SettingsError
from app.validation.check import Check, fail, ok
from app.validation.folder import folder_checks
from app.validation.kafka import kafka_checks
from app.validation.model import model_checks
from consumers.errors import ConfigError


def examine_file(path: Path) -> Iterator[Check]:
    """Check a config file and all that it names, one thing after another."""
    try:
        loaded = load(path)
    except SettingsError as error:
        yield from (fail("settings", ConfigError(problem)) for problem in error.problems)
        return
    except ConfigError as error:
        yield fail("settings", error)
        return
    settings = loaded.settings
    yield ok("settings", f"{path} describes {settings.name}")
    bounds = yield from kafka_checks(settings)
    learner = yield from model_checks(settings)
    yield from folder_checks(settings, learner, bounds)
