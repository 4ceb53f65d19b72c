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
    "members",
    "ordinary",
    "joined",
    "joined_group",
    "arrivals",
    "formats",
    "exports",
    "logins",
    "served",
    "mirror",
)
"""What tests hand over by `record_property`, each under its name."""
PARTS = (*HANDED_OVER, "mutations", "soak", "rows")
"""The parts of a proof, each of which can be made alone."""
FIGURES: Mapping[str, Sequence[str]] = {
    "kills": ["kills.kills"],
    "kills_in_save": ["kills.kills_in_save"],
    "lost": ["kills.lost"],
    "learnt_twice": ["kills.learnt_twice"],
    "corrupt_accepted": ["mutations.corrupt_accepted"],
    "valid_rejected": ["kills.valid_rejected", "mutations.valid_rejected"],
    "max_weight_difference": ["deterministic.max_weight_difference"],
    "group_kills": ["group.kills"],
    "group_lost": ["group.lost"],
    "group_learnt_twice": ["group.learnt_twice"],
    "archive_kills": ["archive.kills"],
    "archive_missing": ["archive.missing"],
    "archive_twice": ["archive.twice"],
    "handover_max_difference": ["handover.max_weight_difference"],
    "rebuild_max_difference": ["rebuild.max_weight_difference"],
    "shaping_lost": ["shaped.lost"],
    "shaping_learnt_twice": ["shaped.learnt_twice"],
    "shaping_max_weight_difference": ["shaped.max_weight_difference"],
    "shaping_wrong": ["shaped.wrong"],
    "members_kills": ["members.kills"],
    "members_max_weight_difference": ["members.max_weight_difference"],
    "ordinary_kills": ["ordinary.kills"],
    "ordinary_lost": ["ordinary.lost"],
    "ordinary_learnt_twice": ["ordinary.learnt_twice"],
    "ordinary_max_weight_difference": ["ordinary.max_weight_difference"],
    "join_kills": ["joined.kills"],
    "join_records": ["joined.records"],
    "join_lost": ["joined.lost"],
    "join_learnt_twice": ["joined.learnt_twice"],
    "join_wrong": ["joined.wrong_labels"],
    "join_false_negatives": ["joined.false_negatives"],
    "join_unaccounted": ["joined.unaccounted"],
    "join_max_weight_difference": ["joined.max_weight_difference"],
    "group_join_kills": ["joined_group.kills"],
    "group_join_lost": ["joined_group.lost"],
    "group_join_learnt_twice": ["joined_group.learnt_twice"],
    "group_join_wrong": ["joined_group.wrong_labels"],
    "group_join_false_negatives": ["joined_group.false_negatives"],
    "group_join_unaccounted": ["joined_group.unaccounted"],
    "arrival_kills": ["arrivals.kills"],
    "arrival_points": ["arrivals.points"],
    "formats_unaccounted": ["formats.unaccounted"],
    "export_kills": ["exports.kills"],
    "export_half_versions": ["exports.half_versions"],
    "oauth_lost": ["logins.lost"],
    "oauth_learnt_twice": ["logins.learnt_twice"],
    "oauth_stall_ms": ["logins.stall_ms"],
    "served_kills": ["served.served_kills"],
    "served_rows": ["served.served_rows"],
    "served_rows_wrong": ["served.served_rows_wrong"],
    "served_versions": ["served.versions"],
    "mirror_losses": ["mirror.unlearnt"],
    "mirror_wrong": ["mirror.wrong"],
    "rows_passed": ["rows.passed"],
    "rows_skipped": ["rows.skipped"],
    "rto_p50_s": ["kills.rto_s.p50"],
    "sigterm_p99_s": ["terms.seconds_to_exit.p99"],
}
"""Where each flat figure comes from: a part, and its place there; the sum of several."""


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
    members: Told = field(default_factory=dict)
    ordinary: Told = field(default_factory=dict)
    joined: Told = field(default_factory=dict)
    joined_group: Told = field(default_factory=dict)
    arrivals: Told = field(default_factory=dict)
    formats: Told = field(default_factory=dict)
    exports: Told = field(default_factory=dict)
    logins: Told = field(default_factory=dict)
    served: Told = field(default_factory=dict)
    mirror: Told = field(default_factory=dict)
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
        return {name: self._figure(*places) for name, places in FIGURES.items()}

    def _figure(self, *places: str) -> float | None:
        found = [value for place in places if (value := _at(self._told(place.partition(".")[0]), place)) is not None]
        return sum(found) if found else None

    def _told(self, part: str) -> Told:
        if part != "rows":
            told: Told = getattr(self, part)
            return told
        outcomes = [row.outcome for row in self.rows().values()] if self.tests else []
        return {outcome: outcomes.count(outcome) for outcome in ("passed", "skipped") if outcomes}

    def broken(self) -> Iterator[str]:
        """Describe each promise that does not hold."""
        for number, row in self.rows().items() if self.tests else ():
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
            "members": (self.members, ("lost", "learnt_twice", "max_weight_difference")),
            "ordinary": (self.ordinary, ("lost", "learnt_twice", "max_weight_difference")),
            "joined": (
                self.joined,
                ("lost", "learnt_twice", "wrong_labels", "false_negatives", "unaccounted", "max_weight_difference"),
            ),
            "joined_group": (
                self.joined_group,
                ("lost", "learnt_twice", "wrong_labels", "false_negatives", "unaccounted"),
            ),
            "arrivals": (self.arrivals, ("unaccounted",)),
            "formats": (self.formats, ("unaccounted",)),
            "exports": (self.exports, ("half_versions", "disagreeing", "left_over")),
            "logins": (self.logins, ("lost", "learnt_twice")),
            "served": (self.served, ("served_rows_wrong", "not_learnt", "refused")),
            "mirror": (self.mirror, ("lost", "learnt_twice", "wrong")),
            "mutations": (self.mutations, ("corrupt_accepted", "valid_rejected")),
        }
        for name, (told, keys) in must_be_zero.items():
            yield from (f"{name}: {key} is {told[key]}, and must be 0" for key in keys if told.get(key))
        for name in (*HANDED_OVER, "soak"):
            told = getattr(self, name)
            if told.get("kept") is False:
                yield f"{name}: it did not keep what is promised: {told.get('broken', 'see its figures')}"
        yield from (f"kills: nobody died at {point}, so the run proves nothing of it" for point in self.missed)


def _at(told: Told, place: str) -> float | None:
    """Return the number at a dotted place in what a part has told; None if it is not there."""
    found: Any = told
    for key in place.split(".")[1:]:
        found = (found or NONE).get(key)
    return found if isinstance(found, int | float) else None
