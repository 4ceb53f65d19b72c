"""Schema gate: it reports each new schema on the topic, and holds the records of one back that cannot be read.

A schema is incompatible if none of its records can give a field that is asked for: the field is gone and nothing stands
in for it, or its type cannot be read. All of its records would be set aside. So the first chunk with such a record is
held before any of it is, until a person lets the records of that schema be set aside, or mends the config and restarts.

Owns which schemas were reported and let pass, and whether it holds.
"""

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from millrace.consumers.records import Partition
from millrace.consumers.suggested_command import suggested_command
from millrace.pipelines.formats.shared.protocol import SchemaFit, changes, in_a_sentence
from millrace.pipelines.gates.gate import HeldBy, LearningHold
from millrace.pipelines.registry.schemas import KeptSchemas
from millrace.pipelines.stream.decode import Decoded, Refused
from millrace.pipelines.stream.slices import SkipRange, within

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class NewSchema:
    """A schema that was not on the topic before."""

    fit: SchemaFit
    before: SchemaFit | None
    """The newest that was known of the same name; None where it is the first."""
    partition: Partition
    offset: int
    """Of its first record here."""

    @property
    def changes(self) -> list[str]:
        """What is different for the fields that are read."""
        return changes(self.before, self.fit)

    @property
    def sentence(self) -> str:
        """Return what it means for the fields that are read, as the end of a sentence."""
        if not self.fit.fields:
            return "JSON is read by the names in `records`, so what it changes for them is not compared"
        if self.before is None and not self.changes:
            return "the fields are read from it"
        return in_a_sentence(self.changes)


class SchemaGate:
    """Reports each new schema, and holds at the first that cannot be read."""

    def __init__(self, kept: KeptSchemas, report: Callable[[NewSchema], None], *, holds: bool = True) -> None:
        """Take whether it holds at all; it always reports."""
        self._seen, self._report, self._holds = _SeenSchemas(kept), report, holds
        self._lock = threading.Lock()
        self._passed: set[int | None] = set()
        self._skips: Sequence[SkipRange] = ()
        self._held: LearningHold | None = None
        self._number: int | None = None
        """Of the schema that is held."""

    def begin(self, positions: Mapping[Partition, int], skips: Sequence[SkipRange] = ()) -> None:
        """Begin with another stream; what was held before is held no longer."""
        del positions
        with self._lock:
            self._held, self._skips = None, skips

    def admits(self, decoded: Decoded) -> bool:
        """Return whether a chunk may go on, and report the schemas that are new in it."""
        with self._lock:
            if self._held is not None:
                return False
            for fit, offset in decoded.schemas:
                if not self._seen.has(fit):
                    before = self._seen.newest(fit.name)
                    self._report(NewSchema(fit=fit, before=before, partition=decoded.partition, offset=offset))
                    self._seen.add(fit)
            if self._holds and (found := self._incompatible(decoded)) is not None:
                self._held, self._number = _held(decoded, found), found.schema
                log.error("the learning is paused: %s. %s", self._held.why, self._held.fix)
            return self._held is None

    def held(self) -> LearningHold | None:
        """Return the schema that it holds; None while it holds none."""
        return self._held

    def let_pass(self, ends: Mapping[Partition, int]) -> bool:
        """Let records of the held schema be set aside until the process ends, wherever the partitions end now."""
        del ends
        with self._lock:
            if self._held is None:
                return False
            self._passed.add(self._number)
            self._held = None
            return True

    def _incompatible(self, decoded: Decoded) -> Refused | None:
        """Return the first record that its schema alone keeps from being learnt; None where there is none."""
        found = [
            one
            for one in decoded.refused
            if one.detail is not None and one.field is not None and one.schema not in self._passed
        ]
        if not found:
            return None
        skipped = within(self._skips, decoded.partition, np.array([one.offset for one in found], dtype=np.int64))
        return next((one for one, skip in zip(found, skipped, strict=True) if skip < 0), None)


class _SeenSchemas:
    """The schemas that were reported, by this process or an earlier one."""

    def __init__(self, kept: KeptSchemas) -> None:
        self._kept = kept
        self._seen = {(fit.number, fit.name): fit for fit in kept.reported()}

    def has(self, fit: SchemaFit) -> bool:
        """Return whether a schema was reported."""
        return (fit.number, fit.name) in self._seen

    def newest(self, name: str) -> SchemaFit | None:
        """Return the schema of this name that was reported last."""
        return next((fit for fit in reversed(self._seen.values()) if fit.name == name), None)

    def add(self, fit: SchemaFit) -> None:
        """Remember that a schema was reported."""
        self._seen[fit.number, fit.name] = fit
        self._kept.keep_reported([*self._seen.values()])


def _held(decoded: Decoded, found: Refused) -> LearningHold:
    where = f"at {decoded.partition}:{found.offset} schema {found.schema}"
    return LearningHold(
        by=HeldBy.SCHEMA,
        why=f"{where} does not give the field {found.field!r}: {found.detail}",
        fix=f"Mend the field {found.field!r} in `records` (missing, field or dtype) and restart: what waits is decoded "
        f"again. Or let the records of schema {found.schema} be set aside: `{suggested_command('resume')}`.",
    )
