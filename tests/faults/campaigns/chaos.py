"""The proof as a command: rows of the matrix, kills, exactness, ordered ends, damage, and what they come to.

    python -m tests.faults.campaigns.chaos --out build/chaos.json            about 20 minutes
    python -m tests.faults.campaigns.chaos --full                         within 2 hours, with the soak beside the tests
    python -m tests.faults.campaigns.chaos --short --rows build/rows.json    at once, from what `make test WHOLE=1` left
    python -m tests.faults.campaigns.chaos --full --only kills,group       these parts, beside those that are there

The short form takes its figures from the tests that have run; the others run campaigns of their own beside them. It
prints its seed, writes the report, and ends with 1 where a promise is broken or a fault never hit.
"""

import argparse
import json
import logging
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from millrace.consumers.errors import MillraceError
from tests.faults.campaigns import (
    archive_kills,
    arrivals,
    exactness,
    exports,
    formats,
    group_joined,
    group_kills,
    group_strikes,
    handover,
    joined,
    kills,
    mirror_losses,
    mutations,
    ordinary,
    rebuild,
    served,
    terms,
    token_logins,
)
from tests.faults.campaigns.machine import ROOT, machine
from tests.faults.matrix.verdict import HANDED_OVER, PARTS, Evidence

_ROWS = ROOT / "build" / "rows.json"
_SOAK = ROOT / "build" / "soak.json"
_OF_CAMPAIGNS = (*HANDED_OVER, "mutations", "soak")
_MUTATIONS = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """How much is done beside the tests."""

    name: str
    kills: int = 0
    deterministic: int = 0
    terms: int = 0
    group: int = 0
    """Kills of a group's workers."""
    archive: int = 0
    """Kills of an archiver."""
    handover: int = 0
    """Kills of a run that hands over from archive to Kafka."""
    rebuild: int = 0
    """Kills of a run of which checkpoints are rebuilt."""
    shaped: int = 0
    """Kills of a run whose rows depend on the records before them."""
    members: int = 0
    """Kills of a run of members."""
    ordinary: int = 0
    """Kills of a run of an ordinary stream: filtered, scaled, remembered by class."""
    joined: int = 0
    """Kills of a run whose labels come later."""
    join_records: int | None = None
    """Its records; None: as many as the kills need."""
    join_clicked: float = 0.1
    """The share of them that labels come for."""
    joined_group: int = 0
    """Kills of the workers of a group whose labels come later."""
    arrivals: int = 0
    """Kills of a run that scores records when they come."""
    formats: int = 0
    """Records of each format, some of them bad."""
    exports: int = 0
    """Kills of an exporter and its trainer."""
    served: int = 0
    """Kills of a server that remembers keys, and of its trainer."""
    served_rows: int = 0
    """The rows that are asked of it."""
    losses: int = 0
    """How often the volume of a run is removed."""
    login_minutes: float = 0.0
    """How long a run learns through ten logins that end."""
    soak_minutes: float = 0.0


SHORT = Form(name="short")
USUAL = Form(
    name="usual",
    kills=40,
    deterministic=6,
    terms=10,
    group=10,
    archive=10,
    handover=3,
    rebuild=3,
    shaped=3,
    members=3,
    ordinary=3,
    joined=3,
    joined_group=4,
    arrivals=1,
    formats=100_000,
    exports=10,
    served=4,
    served_rows=20_000,
    losses=3,
    login_minutes=1.0,
)
FULL = Form(
    name="full",
    kills=200,
    deterministic=20,
    terms=50,
    group=60,
    archive=50,
    handover=10,
    rebuild=9,
    shaped=20,
    members=20,
    ordinary=20,
    joined=20,
    join_records=1_000_000,
    join_clicked=0.03,
    joined_group=16,
    arrivals=3,
    formats=1_000_000,
    exports=50,
    served=20,
    served_rows=1_000_000,
    losses=20,
    login_minutes=10.0,
    soak_minutes=30,
)
_FORMS = {form.name: form for form in (SHORT, USUAL, FULL)}


def run_rows(path: Path) -> None:
    """Run the tests that stand for a row; what failed is told by what they leave."""
    command = [sys.executable, "-m", "pytest", "-q", "-m", "row", "-p", "tests.faults.matrix.rows", "--rows", str(path)]
    path.unlink(missing_ok=True)
    subprocess.run(command, cwd=ROOT, check=False)


@contextmanager
def soaking(form: Form, seed: int, path: Path, parts: frozenset[str]) -> Iterator[None]:
    """Soak, if that is due, beside the tests: mostly it waits. What measures how long a start takes comes after."""
    if not form.soak_minutes or "soak" not in parts:
        yield
        return
    path.unlink(missing_ok=True)
    of = (f"--minutes={form.soak_minutes:g}", f"--seed={seed}", f"--out={path}")
    with subprocess.Popen(
        [sys.executable, "-m", "tests.faults.campaigns.soak", *of], cwd=ROOT, stdout=subprocess.DEVNULL
    ):
        yield


def gather(form: Form, tests: Mapping[str, Any], seed: int, parts: frozenset[str]) -> Evidence:
    """Run the campaigns of this form; what it does not run is taken from the tests."""
    found: dict[str, Any] = {}
    for test in tests.values():
        found |= {name: test["properties"][name] for name in HANDED_OVER if name in test["properties"]}
    if "mutations" in parts:
        found["mutations"] = _tried(lambda: _damaged(seed))
    if form.kills and not parts.isdisjoint(HANDED_OVER):
        with tempfile.TemporaryDirectory(prefix="millrace-chaos-") as folder:
            there = Path(folder)
            with kills.broker(None, there) as bootstrap:
                found |= _campaigns(form, bootstrap, there, seed, parts)
    if form.soak_minutes and "soak" in parts:
        found["soak"] = _soaked()
    return Evidence(tests=tests, **found)


def _campaigns(form: Form, bootstrap: str, there: Path, seed: int, parts: frozenset[str]) -> dict[str, Any]:
    """Run them one after the other; one that fails to finish spoils only its own figures and the exit code."""

    def killed() -> dict[str, Any]:
        found = kills.kill(bootstrap, there / "kills", rounds=form.kills, seed=seed, on_strike=kills.say)
        return found.summary()

    def exact() -> dict[str, Any]:
        return exactness.compare(bootstrap, there / "exact", kills=form.deterministic, seed=seed).summary()

    def ended() -> dict[str, Any]:
        return terms.terminate(bootstrap, there / "terms", rounds=form.terms, seed=seed).summary()

    def of_group() -> dict[str, Any]:
        found = group_kills.wage(
            bootstrap, there / "group", kills=form.group, workers=(2, 3, 1), seed=seed, on_strike=_say
        )
        return found.summary()

    def of_archiver() -> dict[str, Any]:
        found = archive_kills.wage(bootstrap, there / "archive", kills=form.archive, seed=seed, on_strike=_say)
        return found.summary()

    def handed_over() -> dict[str, Any]:
        return handover.hand_over(bootstrap, there / "handover", kills=form.handover, seed=seed).summary()

    def rebuilt() -> dict[str, Any]:
        return rebuild.rebuild_some(bootstrap, there / "rebuild", kills=form.rebuild, seed=seed).summary()

    def shaped() -> dict[str, Any]:
        everything = exactness.EVERYTHING
        return exactness.compare(bootstrap, there / "shaped", kills=form.shaped, seed=seed, shaped=everything).summary()

    def of_members() -> dict[str, Any]:
        mixed = exactness.MEMBERS
        return exactness.compare(bootstrap, there / "members", kills=form.members, seed=seed, shaped=mixed).summary()

    def of_ordinary() -> dict[str, Any]:
        return ordinary.compare(bootstrap, there / "ordinary", kills=form.ordinary, seed=seed).summary()

    def joins() -> dict[str, Any]:
        found = joined.compare(
            bootstrap,
            there / "joined",
            kills=form.joined,
            seed=seed,
            records=form.join_records,
            clicked=form.join_clicked,
        )
        return found.summary()

    def joins_in_group() -> dict[str, Any]:
        return group_joined.wage_both(bootstrap, there / "joined-group", kills=form.joined_group, seed=seed).summary()

    def arriving() -> dict[str, Any]:
        minutes = 1.0 + form.arrivals
        return arrivals.watch(bootstrap, there / "arrivals", minutes=minutes, kills=form.arrivals, seed=seed).summary()

    def accounted() -> dict[str, Any]:
        return formats.account_for(bootstrap, there / "formats", records=form.formats, seed=seed).summary()

    def exported() -> dict[str, Any]:
        found = exports.wage(bootstrap, there / "exports", kills=form.exports, seed=seed, on_strike=_say)
        return found.summary()

    def logged_in() -> dict[str, Any]:
        minutes = form.login_minutes
        return token_logins.watch(there / "logins", minutes=minutes, lifetime_s=minutes * 6, seed=seed).summary()

    def of_server() -> dict[str, Any]:
        rows, of = form.served_rows, there / "served"
        found = served.prove_rows(bootstrap, of, rows=rows, kills=form.served, seed=seed, on_strike=_say, every="30s")
        return found.summary()

    def mirrored() -> dict[str, Any]:
        with mirror_losses.bucket() as place:
            found = mirror_losses.lose(
                bootstrap, there / "mirror", losses=form.losses, seed=seed, place=place, on_strike=_say
            )
        return found.summary()

    campaigns = (
        killed,
        exact,
        ended,
        of_group,
        of_archiver,
        handed_over,
        rebuilt,
        shaped,
        of_members,
        of_ordinary,
        joins,
        joins_in_group,
        arriving,
        accounted,
        exported,
        logged_in,
        of_server,
        mirrored,
    )
    named = zip(HANDED_OVER, campaigns, strict=True)
    return {name: _tried(campaign) for name, campaign in named if name in parts}


def _damaged(seed: int) -> dict[str, Any]:
    logging.disable()  # the store complains of all that is damaged
    try:
        return asdict(mutations.campaign(_MUTATIONS, seed))
    finally:
        logging.disable(logging.NOTSET)


def _soaked() -> dict[str, Any]:
    if not _SOAK.exists():
        return {
            "kept": False,
            "broken": ["the soak ended early and left no figures; run tests.faults.campaigns.soak to see why"],
        }
    figures: dict[str, Any] = json.loads(_SOAK.read_text())["soak"]
    return figures


def _tried(campaign: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    try:
        return campaign()
    except (AssertionError, MillraceError) as error:
        return {"kept": False, "broken": [str(error)]}


def report(form: Form, seed: int, made: Evidence, parts: frozenset[str], before: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is written to the report: these parts as they were made now, the others as they were before."""
    there, now = machine(), datetime.now(UTC).isoformat(timespec="seconds")
    run = {"as_of": now, "form": form.name, "seed": seed, "machine": there}
    found = {name: getattr(made, name) if name in parts else before.get(name, {}) for name in _OF_CAMPAIGNS}
    tests = made.tests if "rows" in parts else before.get("tests", {})
    runs = {part: run if part in parts else before["runs"][part] for part in PARTS if part in parts or found.get(part)}
    if tests:
        runs["rows"] = run if "rows" in parts else before["runs"]["rows"]
    missed = kills.missed(found["kills"]["points"]) if found["kills"] and runs["kills"]["form"] != SHORT.name else []
    missed += found["group"].get("missed", []) if found["group"].get("kills", 0) >= group_strikes.WHOLE else []
    evidence = Evidence(tests=tests, missed=missed, **found)
    return {
        "runs": runs,
        "figures": evidence.figures(),
        "broken": list(evidence.broken()),
        "rows": {str(number): {**asdict(row), "outcome": row.outcome} for number, row in evidence.rows().items()},
        "tests": tests,
        **found,
    }


def prove(form: Form, seed: int, rows: Path | None, parts: frozenset[str], before: Mapping[str, Any]) -> dict[str, Any]:
    """Run what is to be run, and say what it comes to."""
    with soaking(form, seed, _SOAK, parts):
        if rows is None and "rows" in parts:
            run_rows(_ROWS)
    tests = _tests(rows or _ROWS) if "rows" in parts else {}
    return report(form, seed, gather(form, tests, seed, parts), parts, before)


def _tests(rows: Path) -> Mapping[str, Any]:
    if not rows.exists():
        raise SystemExit(f"{rows} is not there; `make test WHOLE=1` writes it")
    tests: Mapping[str, Any] = json.loads(rows.read_text())["tests"]
    return tests


def _parts(text: str) -> frozenset[str]:
    """Read the names of parts."""
    named = frozenset(text.split(","))
    if unknown := named.difference(PARTS):
        raise argparse.ArgumentTypeError(f"{', '.join(sorted(unknown))}: the parts are {', '.join(PARTS)}")
    return named


def main() -> None:
    """Read the options, prove, write, and say what is broken."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    forms = parser.add_mutually_exclusive_group()
    forms.add_argument("--short", dest="form", action="store_const", const=SHORT, default=USUAL)
    forms.add_argument("--full", dest="form", action="store_const", const=FULL)
    parser.add_argument("--only", type=_parts, help="these parts; the others stay as the report has them")
    parser.add_argument("--rows", type=Path, help="what the tests have left, if they have run already")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="draws kills and records")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "chaos.json")
    given = parser.parse_args()
    _say(f"seed {given.seed}")
    before = json.loads(given.out.read_text()) if given.out.exists() else {}
    parts = given.only or frozenset(PARTS).difference(() if given.form.soak_minutes else ("soak",))
    written = prove(given.form, given.seed, given.rows, parts, before if "runs" in before else {})
    given.out.parent.mkdir(parents=True, exist_ok=True)
    given.out.write_text(json.dumps(written, indent=1))
    _say(json.dumps(written["figures"], indent=1))
    for line in written["broken"]:
        _say(f"broken: {line}")
    sys.exit(int(bool(written["broken"])))


def _say(text: str) -> None:
    print(text, flush=True)  # noqa: T201 - a command


if __name__ == "__main__":
    main()
