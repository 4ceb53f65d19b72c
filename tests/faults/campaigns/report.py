"""Takes the figures of `build/chaos.json` into `docs/figures.json`, and writes the tables of `docs/guarantees.md`.

    python -m tests.faults.campaigns.report [--from build/chaos.json] [--into docs/guarantees.md]

A proof in which anything is broken is refused. What stands between the two marks is replaced. Nothing is proved here.
"""

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.faults.campaigns.machine import ROOT
from tests.faults.matrix.table import ROWS
from tests.house.figures import FILE, Figure, Run, figure, fill, keep, table

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
    "formats_unaccounted": "every format with poison: records that met another verdict than theirs",
    "export_kills": "SIGKILLs of an exporter and its trainer, at every failpoint of an export and at any time",
    "export_half_versions": "versions in the folder of exports that were not whole when a reader saw them",
    "rows_passed": f"rows of the matrix that passed, of {len(ROWS)}",
    "rows_skipped": "rows that this machine cannot show",
    "rto_p50_s": "restart to the first new call, median, s",
    "sigterm_p99_s": "SIGTERM to exit, p99, s",
}


def text(report: Report) -> str:
    """Return everything between the marks."""
    lines = ["", place(report), "", *table(["figure", "what it says", "value"], figures(report)), ""]
    lines += [*table(["beside them", ""], details(report)), ""]
    if report.get("soak"):
        lines += [soaked(report["soak"]), ""]
    return "\n".join([*lines, *table(["row", "fault", "came out", "tests"], rows(report)), ""])


def place(report: Report) -> str:
    """Describe when and where it ran, how often, and with which seed."""
    there = report["machine"]
    versions = ", ".join(f"{name} {version}" for name, version in there["versions"].items())
    rows = f" (the rows: {report['rows_commit']})" if "rows_commit" in report else ""
    return (
        f"{report['as_of'][:10]}, commit {there['commit']}{rows}, form {report['form']}, seed {report['seed']}; "
        f"{there['cpus']} cores ({there['cpu']}), Python {there['python']}, {versions}."
    )


def figures(report: Report) -> Iterator[Sequence[str]]:
    """Yield the flat figures."""
    for name, value in report["figures"].items():
        yield f"`{name}`", MEANINGS.get(name, ""), "not tried" if value is None else f"**{number(value)}**"


def details(report: Report) -> Iterator[Sequence[str]]:
    """Yield what else the campaigns report."""
    kills, exact, terms = (report.get(name) or {} for name in ("kills", "deterministic", "terms"))
    if kills:
        yield "records written while they struck", number(kills["records"])
        yield "restarts that went on from the newest durable checkpoint", number(kills["restored_newest"])
        yield "restart to the first new call, s", spread(kills["rto_s"])
        yield "offsets read again after a kill", spread(kills["replay"])
        yield "of them more than lie between two saves and in a block", number(kills["replay_beyond_bound"])
    if exact:
        yield "kills of the deterministic run, over 4 partitions", number(exact["kills"])
    if terms:
        yield f"SIGTERM to exit, {terms['terms']} times, s", spread(terms["seconds_to_exit"])
        yield "offsets read again after a clean stop", number(terms["replayed"])


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


def rows(report: Report) -> Iterator[Sequence[str]]:
    """Yield the matrix."""
    for row, told in report["rows"].items():
        skipped = f", {len(told['skipped'])} skipped" if told["skipped"] else ""
        yield row, told["title"], told["outcome"], f"{len(told['passed'])}{skipped}"


def spread(found: Report) -> str:
    """Return the median and the extremes."""
    return f"p50 {number(found['p50'])}, p99 {number(found['p99'])}, max {number(found['max'])} ({found['n']})"


def number(value: float) -> str:
    """Format a number for people."""
    return f"{value:,}" if isinstance(value, int) else f"{value:,.3g}" if abs(value) < 100 else f"{value:,.0f}"


def taken(report: Report) -> dict[str, Figure]:
    """Return the figures that were tried, as they are kept."""
    recipe = {"full": "make proof", "short": "make chaos-short"}.get(report["form"], "make chaos")
    run = Run(date=report["as_of"][:10], commit=str(report["machine"]["commit"]), command=recipe)
    return {name: figure(name, value, run) for name, value in report["figures"].items() if value is not None}


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
    keep(taken(report), given.figures)
    given.into.write_text(fill(given.into.read_text(), text(report), BEGIN, END))


if __name__ == "__main__":
    main()
