"""The settings: one YAML file, the environment over it, every value with its origin."""

from millrace.app.settings.loading import Loaded, load, load_kafka, load_registry
from millrace.app.settings.root import Settings
from millrace.app.settings.sections.balance import to_balance
from millrace.app.settings.sections.records import to_decoder, to_flood, to_layout, to_schema
from millrace.app.settings.sections.reservoir import to_reservoir
from millrace.app.settings.sections.windows import to_row_schema, to_windows

__all__ = [
    "Loaded",
    "Settings",
    "load",
    "load_kafka",
    "load_registry",
    "to_balance",
    "to_decoder",
    "to_flood",
    "to_layout",
    "to_reservoir",
    "to_row_schema",
    "to_schema",
    "to_windows",
]
