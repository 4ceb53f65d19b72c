"""The fuzzing of the HTTP side: schemathesis, by its description, against a trainer that runs.

    python -m tests.faults.campaigns.fuzz --cases 5000

prints its figures as JSON, and ends with 1 where an answer is not what the description says, or where there were fewer
cases. `--bootstrap` names a broker; without it a local one is started. Whoever fuzzes has a token, so that orders are
really carried out.
"""

import argparse
import json
import math
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass, field
from pathlib import Path

import httpx

from tests.faults.campaigns.kills import broker
from tests.faults.harness.guarded import Guarded, guarded

_CONFIG = """\
# Nobody waits for what a paused trainer does not do.
[[operations]]
include-path = "/profile"
parameters = { "query.wait" = "0s" }
"""
_QUICK = ("examples", "fuzzing")
_WHOLE = ("examples", "coverage", "fuzzing", "stateful")
_MORE = 1.5
"""Some operations have few cases that differ, so the others need more."""
_WITHIN_S = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Fuzzed:
    """What came of it."""

    cases: int
    seed: int
    seconds: float
    failures: list[str]
    """Kind and operations of what is not as described."""
    said: str = field(repr=False)
    """All that schemathesis has said, with a command for each failure."""


def fuzz(target: Guarded, folder: Path, *, cases: int, seed: int, whole: bool) -> Fuzzed:
    """Run about this many cases, spread over all operations; of all kinds, or only random ones."""
    config, report = folder / "schemathesis.toml", folder / "report.json"
    config.write_text(_CONFIG)
    described = httpx.get(f"{target.url}/openapi.json", timeout=60).json()
    each = math.ceil(_MORE * cases / sum(map(len, described["paths"].values())))
    options = {
        "--header": f"Authorization: Bearer {target.token}",
        "--phases": ",".join(_WHOLE if whole else _QUICK),
        "--max-examples": each,
        "--checks": "all",
        "--exclude-checks": "positive_data_acceptance",  # what no schema can say is refused by 422: `to: ":"`, say
        "--seed": seed,
        "--request-timeout": 60,
        "--suppress-health-check": "all",
        "--warnings": "off",
        "--report": "json",
        "--report-json-path": report,
    }
    command = [sys.executable, "-m", "schemathesis.cli", "--config-file", str(config), "run", "--continue-on-failure"]
    command += [str(part) for option in options.items() for part in option]
    done = subprocess.run(
        [*command, f"{target.url}/openapi.json"],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=_WITHIN_S,
        check=False,
    )
    said = done.stdout + done.stderr
    if not report.exists():
        raise SystemExit(said)
    told = json.loads(report.read_text())
    failures = [f"{one['title']}: {', '.join(one['operations'])}" for one in told["failures"]]
    failures += [str(one) for one in told["errors"]]
    return Fuzzed(
        cases=told["test_cases"]["generated"],
        seed=seed,
        seconds=round(told["running_time"], 1),
        failures=failures,
        said=said,
    )


def main() -> None:
    """Read the options, fuzz, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bootstrap")
    parser.add_argument("--cases", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=11)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="fuzz-") as name:
        folder = Path(name)
        with broker(given.bootstrap, folder) as bootstrap, guarded(bootstrap, folder / "trainer") as target:
            found = fuzz(target, folder, cases=given.cases, seed=given.seed, whole=True)
    if found.failures:
        sys.stderr.write(found.said)
    told = {name: value for name, value in asdict(found).items() if name != "said"}
    sys.stdout.write(f"{json.dumps(told, indent=1)}\n")
    if found.failures or found.cases < given.cases:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
