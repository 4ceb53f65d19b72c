"""The gate of schemas, and the event of each new one: what it changes for the fields that are read."""

import logging

from millrace.app.settings import Settings
from millrace.app.settings.sections.registry import cache_of
from millrace.pipelines.gates.schema_gate import NewSchema, SchemaGate
from millrace.pipelines.registry.schemas import KeptSchemas
from millrace.training.telemetry.events import EventKind, ReportEvent, Severity

log = logging.getLogger(__name__)


def schema_gate(settings: Settings, report_event: ReportEvent) -> SchemaGate | None:
    """Return the gate; None where no registry says which schema wrote a record."""
    registry = settings.records.registry
    if registry is None:
        return None

    def report(new: NewSchema) -> None:
        _tell(report_event, new)

    return SchemaGate(KeptSchemas(cache_of(registry)), report, holds=registry.on_incompatible == "pause")


def _tell(report_event: ReportEvent, new: NewSchema) -> None:
    fit, before, changes = new.fit, new.before, new.changes
    graver = any(field.unfit is not None for field in fit.fields.values())
    since = "" if before is None else f" after schema {before.number}"
    where = f"first at {new.partition}:{new.offset}"
    text = f"Schema {fit.number} ({fit.name}) is on the topic{since}, {where}: {new.sentence}"
    log.info("%s", text)
    report_event(
        EventKind.NEW_SCHEMA,
        f"{text}.",
        Severity.WARNING if graver else Severity.INFO,
        schema=fit.number,
        before=None if before is None else before.number,
        changes=changes,
        partition=str(new.partition),
        offset=new.offset,
    )
