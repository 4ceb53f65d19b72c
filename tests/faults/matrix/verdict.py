"""What a proof comes to: each row's outcome, the flat figures, and every promise that is broken. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.faults.matrix.table import ROWS

Told = Mapping[str, Any]
NONE: Told = {}


HANDED_OVER = (
    "kills",
    "deterministic",
    "terms",
    "group",
    "archive",
    "handover",
    "rebuild",
    "shaped",
    "formats",
    "exports",
)
"""What tests hand over by `record_property`, each under its name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One row of the matrix, by the tests that stand for it."""

    title: str
    passed: tuple[str, ...] = ()
    skipped: Mapping[str, str] = field(default_factory=dict)
    """Tests that this machine cannot run, with the reason; the list of them is in `tests/faults/matrix/skips.py`."""
    failed: tuple[str, ...] = ()

    @property
    def outcome(self) -> str:
        """passed, skipped, failed, or missing where nothing stands for it."""
        if self.failed:
            return "failed"
        if self.passed:
            return "passed"
        return "skipped" if self.skipped else "missing"


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """All that was found out; what was not tried is empty."""

    tests: Mapping[str, Told]
    """By test: `rows`, `outcome`, `why`, `properties`."""
    kills: Told = field(default_factory=dict)
    deterministic: Told = field(default_factory=dict)
    terms: Told = field(default_factory=dict)
    mutations: Told = field(default_factory=dict)
    soak: Told = field(default_factory=dict)
    group: Told = field(default_factory=dict)
    archive: Told = field(default_factory=dict)
    handover: Told = field(default_factory=dict)
    rebuild: Told = field(default_factory=dict)
    shaped: Told = field(default_factory=dict)
    formats: Told = field(default_factory=dict)
    exports: Told = field(default_factory=dict)
    missed: Sequence[str] = ()
    """Failpoints at which nobody died, though all were to be hit."""

    def rows(self) -> dict[int, Row]:
        """Return each row of the matrix."""
        return {number: self._row(number, title) for number, title in ROWS.items()}

    def _row(self, number: int, title: str) -> Row:
        tests = {name: test for name, test in self.tests.items() if number in test["rows"]}
        return Row(
            title=title,
            passed=tuple(name for name, test in tests.items() if test["outcome"] == "passed"),
            skipped={name: test["why"] for name, test in tests.items() if test["outcome"] == "skipped"},
            failed=tuple(name for name, test in tests.items() if test["outcome"] in ("failed", "not run")),
        )

    def figures(self) -> dict[str, float | None]:
        """Return the flat figures; None for what was not tried."""
        outcomes = [row.outcome for row in self.rows().values()]
        return {
            "kills": self.kills.get("kills"),
            "kills_in_save": self.kills.get("kills_in_save"),
            "lost": self.kills.get("lost"),
            "learnt_twice": self.kills.get("learnt_twice"),
            "corrupt_accepted": self.mutations.get("corrupt_accepted"),
            "valid_rejected": _added(self.kills.get("valid_rejected"), self.mutations.get("valid_rejected")),
            "max_weight_difference": self.deterministic.get("max_weight_difference"),
            "group_kills": self.group.get("kills"),
            "group_lost": self.group.get("lost"),
            "group_learnt_twice": self.group.get("learnt_twice"),
            "archive_kills": self.archive.get("kills"),
            "archive_missing": self.archive.get("missing"),
            "archive_twice": self.archive.get("twice"),
            "handover_max_difference": self.handover.get("max_weight_difference"),
            "rebuild_max_difference": self.rebuild.get("max_weight_difference"),
            "shaping_lost": self.shaped.get("lost"),
            "shaping_learnt_twice": self.shaped.get("learnt_twice"),
            "shaping_max_weight_difference": self.shaped.get("max_weight_difference"),
            "shaping_wrong": self.shaped.get("wrong"),
            "formats_unaccounted": self.formats.get("unaccounted"),
            "export_kills": self.exports.get("kills"),
            "export_half_versions": self.exports.get("half_versions"),
            "rows_passed": outcomes.count("passed"),
            "rows_skipped": outcomes.count("skipped"),
            "rto_p50_s": self.kills.get("rto_s", NONE).get("p50"),
            "sigterm_p99_s": self.terms.get("seconds_to_exit", NONE).get("p99"),
        }

    def broken(self) -> Iterator[str]:
        """Describe each promise that does not hold."""
        for number, row in self.rows().items():
            if row.outcome in ("failed", "missing"):
                yield f"row {number}, {row.title}: {row.outcome} {' '.join(row.failed)}".rstrip()
        must_be_zero = {
            "kills": (self.kills, ("lost", "learnt_twice", "unbalanced", "valid_rejected", "replay_beyond_bound")),
            "deterministic": (self.deterministic, ("max_weight_difference",)),
            "terms": (self.terms, ("replayed", "lost", "learnt_twice")),
            "group": (self.group, ("lost", "learnt_twice")),
            "archive": (self.archive, ("missing", "twice", "changed", "damaged", "left_over")),
            "handover": (self.handover, ("max_weight_difference",)),
            "rebuild": (self.rebuild, ("max_weight_difference",)),
            "shaped": (self.shaped, ("lost", "learnt_twice", "max_weight_difference", "wrong")),
            "formats": (self.formats, ("unaccounted",)),
            "exports": (self.exports, ("half_versions", "disagreeing", "left_over")),
            "mutations": (self.mutations, ("corrupt_accepted", "valid_rejected")),
        }
        for name, (told, keys) in must_be_zero.items():
            yield from (f"{name}: {key} is {told[key]}, and must be 0" for key in keys if told.get(key))
        for name in (*HANDED_OVER, "soak"):
            told = getattr(self, name)
            if told.get("kept") is False:
                yield f"{name}: it did not keep what is promised: {told.get('broken', 'see its figures')}"
        yield from (f"kills: nobody died at {point}, so the run proves nothing of it" for point in self.missed)


def _added(one: float | None, other: float | None) -> float | None:
    return None if one is None and other is None else (one or 0) + (other or 0)
