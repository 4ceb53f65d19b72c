"""The settings: one YAML file, the environment over it, every value with its origin."""

from millrace.app.settings.loading import Loaded, load, load_kafka, load_registry
from millrace.app.settings.root import Settings
from millrace.app.settings.sections.records import own_settings, records_of, to_decoder, to_format, to_schema

__all__ = [
    "Loaded",
    "Settings",
    "load",
    "load_kafka",
    "load_registry",
    "own_settings",
    "records_of",
    "to_decoder",
    "to_format",
    "to_schema",
]
