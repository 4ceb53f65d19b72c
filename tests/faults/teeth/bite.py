"""Takes each protection out, one at a time, and sees the test of its row fail.

    python -m tests.faults.teeth.bite                every protection of `tests/faults/teeth/protections.py`
    python -m tests.faults.teeth.bite --rows 4,9     those of these rows

The packages are copied to a temporary folder, and test and trainers run there: the working tree is never touched. Each
test runs in a sound copy first. A row is bitten where its test passes there and fails, within the same time, in a copy
that lacks the protection. Where it does not fail, or the copy cannot even be imported, this ends with 1. What was found
goes to `build/teeth.json`, what the tests have said to `build/teeth/`.
"""

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Any

from millrace.app.tools.local_broker import LocalBroker
from tests.conftest import BOOTSTRAP, EAGER
from tests.faults.campaigns.machine import ROOT, machine
from tests.faults.teeth.cuts import PACKAGES
from tests.faults.teeth.protections import TEETH, Tooth

_IMPORTED = "import millrace.app.cli; print(millrace.__file__, millrace.app.cli.__file__, sep='\\n')"
_PLUGINS = ("no:cacheprovider", "tests.faults.matrix.rows", "tests.faults.teeth.within")
_TO_END_S = 120.0
"""What pytest may take besides its tests, before it is killed."""
_FAILED = re.compile(r"^(?:FAILED|ERROR) .+? - (.+)$", re.MULTILINE)
_NO_PROGRAM = re.compile(
    r"\b(?:NameError|UnboundLocalError|SyntaxError|IndentationError|ImportError|ModuleNotFoundError): "
)


class Outcome(StrEnum):
    """What became of one protection's loss."""

    BITTEN = "bitten"
    UNNOTICED = "NOT bitten"
    """The test passes all the same."""
    UNSOUND = "unsound"
    """The test does not pass in a sound copy, so that its failing shows nothing."""
    SPOILT = "spoilt"
    """No test ran, or what was changed is no program any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One run of one test in one copy."""

    passed: bool
    failed: bool
    seconds: float
    how: str
    """The first failure in a line."""
    said: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Bite:
    """What was found of one tooth."""

    tooth: Tooth
    outcome: Outcome
    seconds: float
    how: str


@contextmanager
def copied(source: Path, tooth: Tooth | None = None) -> Iterator[Path]:
    """Copy a tree without one of its protections. Compiled files go with it, as the times of files do."""
    with tempfile.TemporaryDirectory(prefix="millrace-teeth-", ignore_cleanup_errors=True) as folder:
        copy = Path(folder).resolve()
        for name in (*PACKAGES, "millrace", "tests"):
            shutil.copytree(source / name, copy / name, symlinks=True)
        shutil.copy(source / "pyproject.toml", copy)
        if tooth is not None:
            path = copy / tooth.file
            path.write_text(tooth.without(path.read_text()))
        yield copy


def tried(tooth: Tooth, copy: Path, bootstrap: str) -> Trial:
    """Run its test in a copy."""
    environment = {**os.environ, BOOTSTRAP: bootstrap, "PYTHONPATH": str(copy), "COLUMNS": "400"}
    _require_own_code(copy, environment)
    told = copy / "rows.json"
    told.unlink(missing_ok=True)
    began = time.monotonic()
    with (copy / "said").open("w+", errors="replace") as said:
        _run(_command(tooth, copy, told), copy, environment, said.fileno(), tooth.within_s + _TO_END_S)
        seconds = time.monotonic() - began
        said.seek(0)
        text = said.read()
    tests = json.loads(told.read_text())["tests"].values() if told.exists() else ()
    outcomes = [found["outcome"] for found in tests if tooth.row in found["rows"]]
    line = _FAILED.search(text)
    return Trial(
        passed=bool(outcomes) and set(outcomes) == {"passed"},
        failed="failed" in outcomes,
        seconds=round(seconds, 1),
        how=line[1] if line is not None else "",
        said=text,
    )


def _command(tooth: Tooth, copy: Path, told: Path) -> list[str]:
    plugins = [part for name in _PLUGINS for part in ("-p", name)]
    options = ["--rows", str(told), "--within", f"{tooth.within_s:g}", "--basetemp", str(copy / "tmp")]
    return [sys.executable, "-m", "pytest", "-q", "-x", *plugins, *options, tooth.test_id]


def _require_own_code(copy: Path, environment: Mapping[str, str]) -> None:
    """What a process of the copy imports must be the copy's, though the tree may be installed beside it."""
    safe = {**environment, "PYTHONSAFEPATH": "1"}
    done = subprocess.run(
        [sys.executable, "-c", _IMPORTED], cwd="/", env=safe, capture_output=True, text=True, check=True
    )
    foreign = [path for path in done.stdout.split() if not Path(path).is_relative_to(copy)]
    assert not foreign, f"a process of the copy {copy} imports {', '.join(foreign)}"


def _run(command: list[str], cwd: Path, environment: Mapping[str, str], output: int, within_s: float) -> None:
    """Run it in a group of its own, of which nothing is left afterwards."""
    process = subprocess.Popen(
        command,
        cwd=cwd,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        start_new_session=True,
    )
    try:
        process.wait(within_s)
    except subprocess.TimeoutExpired:
        os.kill(process.pid, signal.SIGINT)  # so that it ends what it has started in sessions of their own
        with suppress(subprocess.TimeoutExpired):
            process.wait(_TO_END_S)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


class Biting:
    """One go through the table."""

    def __init__(self, sound: Path, bootstrap: str, logs: Path, *, at_once: bool) -> None:
        """`sound` is a copy of the tree; `at_once`, no test runs there."""
        self._sound, self._bootstrap, self._logs, self._at_once = sound, bootstrap, logs, at_once
        self._sound_trials: dict[tuple[str, float], Trial] = {}

    def bite(self, tooth: Tooth) -> Bite:
        """Try it with and without."""
        if not self._at_once and not (sound := self._tried_sound(tooth)).passed:
            return Bite(tooth=tooth, outcome=Outcome.UNSOUND, seconds=sound.seconds, how=sound.how)
        with copied(self._sound, tooth) as copy:
            trial = tried(tooth, copy, self._bootstrap)
        self._keep(f"row-{tooth.row}-{TEETH.index(tooth)}", trial)
        return Bite(tooth=tooth, outcome=judged(trial), seconds=trial.seconds, how=trial.how)

    def _tried_sound(self, tooth: Tooth) -> Trial:
        key = tooth.test, tooth.within_s
        if key not in self._sound_trials:
            self._sound_trials[key] = trial = tried(tooth, self._sound, self._bootstrap)
            self._keep(f"row-{tooth.row}-{TEETH.index(tooth)}-sound", trial)
            _say(f"        sound      {trial.seconds:6.1f} s  {tooth.test}")
        return self._sound_trials[key]

    def _keep(self, name: str, trial: Trial) -> None:
        self._logs.mkdir(parents=True, exist_ok=True)
        (self._logs / f"{name}.log").write_text(trial.said)


def judged(trial: Trial) -> Outcome:
    """Judge a run without the protection."""
    if trial.passed:
        return Outcome.UNNOTICED
    if not trial.failed or _NO_PROGRAM.search(trial.said):
        return Outcome.SPOILT
    return Outcome.BITTEN


def report(bites: Collection[Bite]) -> dict[str, Any]:
    """Return what is written to the report: each row with its teeth."""
    rows: dict[str, list[dict[str, Any]]] = {}
    for bite in bites:
        told = {"outcome": bite.outcome, "seconds": bite.seconds, "how": bite.how, **asdict(bite.tooth)}
        rows.setdefault(str(bite.tooth.row), []).append(told)
    return {"as_of": datetime.now(UTC).isoformat(timespec="seconds"), "machine": machine(), "rows": rows}


@contextmanager
def broker(folder: Path) -> Iterator[str]:
    """One Kafka for all that are content with the session's: the given one, or a local one."""
    if given := os.environ.get(BOOTSTRAP):
        yield given
    else:
        with LocalBroker(folder, settings=EAGER) as local:
            yield local.bootstrap_servers


def main() -> None:
    """Read the options, go through the table, write, and say what went unnoticed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", help="only these, as in 4,9")
    parser.add_argument("--first", action="store_true", help="only the first protection of each row")
    parser.add_argument("--at-once", action="store_true", help="leave out the sound copy: the tests are known to pass")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "teeth.json")
    given = parser.parse_args()
    rows = None if given.rows is None else {int(row) for row in given.rows.split(",")}
    chosen = [tooth for tooth in TEETH if rows is None or tooth.row in rows]
    if rows is not None and (unknown := rows - {tooth.row for tooth in chosen}):
        raise SystemExit(f"--rows: {', '.join(map(str, sorted(unknown)))}: no such row has a protection in the table")
    if given.first:
        chosen = list({tooth.row: tooth for tooth in reversed(chosen)}.values())[::-1]
    given.out.parent.mkdir(parents=True, exist_ok=True)
    signal.signal(signal.SIGTERM, lambda *_told: sys.exit(1))  # and nothing that was started is left
    bites: list[Bite] = []
    with (
        tempfile.TemporaryDirectory(prefix="millrace-teeth-broker-") as folder,
        broker(Path(folder)) as bootstrap,
        copied(ROOT) as sound,
    ):
        biting = Biting(sound, bootstrap, given.out.with_suffix(""), at_once=given.at_once)
        for tooth in chosen:
            bites.append(bite := biting.bite(tooth))
            _say(f"row {tooth.row:3} {bite.outcome:10} {bite.seconds:6.1f} s  {tooth.missing} {bite.how}"[:200])
            given.out.write_text(json.dumps(report(bites), indent=1))
    left = [bite for bite in bites if bite.outcome is not Outcome.BITTEN]
    _say(f"{len(bites) - len(left)} of {len(bites)} were noticed")
    sys.exit(int(bool(left)))


def _say(text: str) -> None:
    print(text, flush=True)  # noqa: T201 - a command


if __name__ == "__main__":
    main()
