"""Takes the figures of `build/chaos.json` into `docs/figures.json`, and writes the tables of `docs/guarantees.md`.

    python -m tests.faults.campaigns.report [--from build/chaos.json] [--into docs/guarantees.md]

A proof in which anything is broken is refused. A part that the report lacks stays as it was published, with its date
and commit. What stands between the two marks is made from the figures. Nothing is proved here.
"""

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.faults.campaigns.machine import ROOT
from tests.faults.matrix.table import ROWS
from tests.faults.matrix.verdict import FIGURES
from tests.house.figures import FILE, Figure, Figures, Run, Value, figure, fill, keep, table

BEGIN = "<!-- begin of what `make proof-report` writes -->"
END = "<!-- end of what `make proof-report` writes -->"
Report = Mapping[str, Any]

MEANINGS: Mapping[str, str] = {
    "kills": "SIGKILLs, at random times and at every failpoint",
    "kills_in_save": "of them inside a save",
    "lost": "offsets lost",
    "learnt_twice": "offsets learnt twice",
    "corrupt_accepted": "damaged checkpoints that were accepted",
    "valid_rejected": "sound checkpoints that were rejected, or not gone on from though the newest",
    "max_weight_difference": "deterministic mode: greatest difference of any weight after kills",
    "group_kills": "SIGKILLs of a group's chief and its other workers, at every failpoint and at any time",
    "group_lost": "offsets that the group lost",
    "group_learnt_twice": "offsets that the group learnt twice",
    "archive_kills": "SIGKILLs of an archiver while records arrive",
    "archive_missing": "offsets that no shard of the archive has",
    "archive_twice": "offsets that two shards have",
    "handover_max_difference": "archive to Kafka: greatest difference of any weight to a run from Kafka alone",
    "rebuild_max_difference": "checkpoints rebuilt from their records: greatest difference of any weight",
    "shaping_lost": "rows that depend on the records before them: offsets lost through kills",
    "shaping_learnt_twice": "the same: offsets learnt twice",
    "shaping_max_weight_difference": "the same: greatest difference of any weight, or of what is remembered",
    "shaping_wrong": "the same: sequences learnt that are not those of a plain reference over the whole log",
    "members_kills": "SIGKILLs of a run of members, of which one begins anew at each drift",
    "members_max_weight_difference": "the same: greatest difference of any weight, or of what is remembered",
    "ordinary_kills": "SIGKILLs of a run that filters, scales and has a golden set, a reservoir by class, a detector",
    "ordinary_lost": "the same: matching offsets lost",
    "ordinary_learnt_twice": "the same: learnt twice, or learnt though filtered",
    "ordinary_max_weight_difference": "the same: greatest difference of any weight, or of what is remembered",
    "join_kills": "SIGKILLs of a run whose labels come later, on another topic",
    "join_records": "the same: records, and as many of a run that was not killed",
    "join_lost": "the same: records lost",
    "join_learnt_twice": "the same: records learnt twice",
    "join_wrong": "the same: records learnt with another label than that of a plain join of both topics",
    "join_false_negatives": "the same: of these, learnt as if there were none",
    "join_unaccounted": "the same: labels by which the account is off",
    "join_max_weight_difference": "the same: greatest difference of any weight",
    "group_join_kills": "SIGKILLs of two workers who join such labels, each reading all of them, then its own",
    "group_join_lost": "the same: records lost",
    "group_join_learnt_twice": "the same: records learnt twice",
    "group_join_wrong": "the same: records learnt with another label than that of a plain join of both topics",
    "group_join_false_negatives": "the same: of these, learnt as if there were none",
    "group_join_unaccounted": "the same: labels by which the account is off",
    "arrival_kills": "SIGKILLs of a run that scores records when they come, of a live stream that turns",
    "arrival_points": "the same: points between that score and a replay with the delay in plain Keras, at most 0.2",
    "formats_unaccounted": "every format with poison: records that met another verdict than theirs",
    "export_kills": "SIGKILLs of an exporter and its trainer, at every failpoint of an export and at any time",
    "export_half_versions": "versions in the folder of exports that were not whole when a reader saw them",
    "oauth_lost": "tokens and logins that end ten times while records come: offsets lost",
    "oauth_learnt_twice": "the same: offsets learnt twice",
    "oauth_stall_ms": "the same: longest pause between two calls of the model, ms, at most 1000",
    "served_kills": "SIGKILLs of a server that remembers keys, and of its trainer",
    "served_rows": "the same: rows that the server has made, each compared with the one of training",
    "served_rows_wrong": "the same: rows of which a bit differs from what training made of the same offset",
    "mirror_losses": "SIGKILLs after each of which the volume is removed: offsets lost or learnt twice",
    "mirror_wrong": "the same: starts from another checkpoint than the newest of the mirror, or from other bytes",
    "served_versions": "the same: versions that answered, each exported beside the kills",
    "rows_passed": f"rows of the matrix that passed, of {len(ROWS)}",
    "rows_skipped": "rows that this machine cannot show",
    "rto_p50_s": "restart to the first new call, median, s",
    "sigterm_p99_s": "SIGTERM to exit, p99, s",
}
DETAILS: Mapping[str, str] = {
    "proof.records": "records written while they struck",
    "proof.restored_newest": "restarts that went on from the newest durable checkpoint",
    "proof.restart_s": "restart to the first new call, s",
    "proof.replayed": "offsets read again after a kill",
    "proof.replayed_beyond_bound": "of them more than lie between two saves and in a block",
    "proof.exact_kills": "kills of the deterministic run, over 4 partitions",
    "proof.terms": "SIGTERMs",
    "proof.exit_s": "SIGTERM to exit, s",
    "proof.replayed_after_terms": "offsets read again after a clean stop",
}
"""What else the campaigns report."""


def text(told: Figures) -> str:
    """Return everything between the marks."""
    lines = ["", f"On {told['machine.proof'].value}.", ""] if "machine.proof" in told else [""]
    lines += table(["figure", "what it says", "value", "shown"], _lines(told, MEANINGS))
    lines += ["", *table(["beside them", "", "shown"], (row[1:] for row in _lines(told, DETAILS))), ""]
    if soak := told.get("proof.soak"):
        lines += [f"{soak.value} ({_when(soak)})", ""]
    rows = ((str(row), title, *_row(told.get(f"row.{row}"))) for row, title in ROWS.items())
    return "\n".join([*lines, *table(["row", "fault", "came out", "shown"], rows), ""])


def _lines(told: Figures, meanings: Mapping[str, str]) -> Iterator[Sequence[str]]:
    for name, says in meanings.items():
        if one := told.get(name):
            yield f"`{name}`", says, f"**{number(one.value)}**", _when(one)
        else:
            yield f"`{name}`", says, "not tried", ""


def _row(told: Figure | None) -> Sequence[str]:
    return ("not tried", "") if told is None else (str(told.value), _when(told))


def _when(one: Figure) -> str:
    return f"{one.date}, {one.commit[:8]}"


def taken(report: Report) -> dict[str, Figure]:
    """Return what was tried, as it is kept: each figure with the run that its part was made in."""
    runs = {part: _run(told) for part, told in report["runs"].items()}
    parts = {name: places[0].partition(".")[0] for name, places in FIGURES.items()}
    found = {
        name: figure(name, value, runs[parts[name]])
        for name, value in report["figures"].items()
        if value is not None and parts[name] in runs
    }
    details = {"proof." + name: (part, value) for part, name, value in _details(report)}
    found |= {name: figure(name, value, runs[part]) for name, (part, value) in details.items() if part in runs}
    rows = report["rows"] if "rows" in runs else {}
    found |= {f"row.{row}": figure(f"row.{row}", outcome(told), runs["rows"]) for row, told in rows.items()}
    latest = max(report["runs"].values(), key=lambda run: str(run["as_of"]))
    return {**found, "machine.proof": figure("machine.proof", place(latest["machine"]), _run(latest))}


def _run(told: Report) -> Run:
    recipe = {"full": "make proof", "short": "make chaos-short"}.get(told["form"], "make chaos")
    return Run(date=told["as_of"][:10], commit=str(told["machine"]["commit"]), command=recipe)


def _details(report: Report) -> Iterator[tuple[str, str, Value]]:
    """Yield what else the campaigns report: the part, the figure's name, the value."""
    kills, exact, terms, soak = (report.get(name) or {} for name in ("kills", "deterministic", "terms", "soak"))
    if kills:
        yield "kills", "records", kills["records"]
        yield "kills", "restored_newest", kills["restored_newest"]
        yield "kills", "restart_s", spread(kills["rto_s"])
        yield "kills", "replayed", spread(kills["replay"])
        yield "kills", "replayed_beyond_bound", kills["replay_beyond_bound"]
    if exact:
        yield "deterministic", "exact_kills", exact["kills"]
    if terms:
        yield "terms", "terms", terms["terms"]
        yield "terms", "exit_s", spread(terms["seconds_to_exit"])
        yield "terms", "replayed_after_terms", terms["replayed"]
    if soak:
        yield "soak", "soak", soaked(soak)


def place(there: Report) -> str:
    """Describe the machine and what was run on it."""
    versions = ", ".join(f"{name} {version}" for name, version in there["versions"].items())
    return f"{there['cpus']} cores ({there['cpu']}), Python {there['python']}, {versions}"


def outcome(row: Report) -> str:
    """Describe how a row of the matrix came out, and by how many tests."""
    skipped = f", {len(row['skipped'])} skipped" if row["skipped"] else ""
    passed = len(row["passed"])
    return f"{row['outcome']} ({passed} test{'' if passed == 1 else 's'}{skipped})"


def soaked(soak: Report) -> str:
    """Describe the soak in one sentence."""
    faults = ", ".join(f"{name} {count}" for name, count in sorted(soak["faults"].items()))
    held = "held" if soak["kept"] else f"did not hold ({'; '.join(soak['broken'])})"
    return (
        f"Soak of {soak['minutes']:g} minutes, seed {soak['seed']}: one service, {soak['records']:,} records, and what "
        f"is promised {held}. Faults: {faults}. Over the last two thirds anonymous memory grew by "
        f"{soak['memory_mb_per_min']} MB a minute, descriptors by {soak['descriptors_per_min']} and threads by "
        f"{soak['threads_per_min']}. Of {soak['requests']:,} requests {soak['server_errors']} met an error of ours."
    )


def spread(found: Report) -> str:
    """Return the median and the extremes."""
    return f"p50 {number(found['p50'])}, p99 {number(found['p99'])}, max {number(found['max'])} ({found['n']})"


def number(value: Value) -> str:
    """Format a number for people; a text stays as it is."""
    if isinstance(value, str):
        return value
    return f"{value:,}" if isinstance(value, int) else f"{value:,.3g}" if abs(value) < 100 else f"{value:,.0f}"


def main() -> None:
    """Read the report, write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--from", dest="source", type=Path, default=ROOT / "build" / "chaos.json")
    parser.add_argument("--figures", type=Path, default=FILE)
    parser.add_argument("--into", type=Path, default=ROOT / "docs" / "guarantees.md")
    given = parser.parse_args()
    if not given.source.exists():
        raise SystemExit(f"{given.source} is not there; `make proof` writes it")
    report = json.loads(given.source.read_text())
    if report["broken"]:
        raise SystemExit(f"{given.source}: no figure is taken: {'; '.join(report['broken'])}")
    written = text(keep(taken(report), given.figures))
    given.into.write_text(fill(given.into.read_text(), written, BEGIN, END))


if __name__ == "__main__":
    main()
