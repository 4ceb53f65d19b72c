"""The settings: one YAML file, the environment over it, every value with its origin."""

from app.settings.loading import Loaded, load, load_kafka, load_registry
from app.settings.root import Settings
from app.settings.sections.balance import to_balance
from app.settings.sections.records import to_decoder, to_flood, to_layout, to_schema
from app.settings.sections.reservoir import to_reservoir
from app.settings.sections.windows import to_row_schema, to_windows

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
