"""Logins that end as a campaign: tokens of a minute, for ten minutes, while records are learnt.

    python -m tests.faults.campaigns.token_logins --minutes 10 --lifetime 60

A broker asks for the tokens of an endpoint, and ends each login with its token. At the end all that was written must be
learnt, once, by the witness in the weights; no line of the log may complain, and no two calls of the model may have
been further apart than a second.
"""

import argparse
import json
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from millrace.app.tools.local_broker import LocalBroker
from tests.faults.harness.locked import listeners, oauth_settings, trusting
from tests.faults.harness.process import Run
from tests.faults.harness.project import Project
from tests.faults.harness.records import Mixture
from tests.faults.harness.shelf import Shelf
from tests.faults.harness.topics import Topic
from tests.oidc import CLIENT, SECRET, OidcProvider

PARTITIONS = 2
_LOOK_S = 0.01
_CALL = b"failpoint call.settled"
_MOST_STALL_MS = 1000
_COMPLAINTS = ("WARNING", "ERROR")


@dataclass(slots=True, kw_only=True)
class LoginFigures:
    """What it comes to."""

    seed: int
    seconds: float
    lifetime_s: float
    records: int = 0
    tokens: int = 0
    """Tokens that the endpoint issued."""
    lost: int = 0
    learnt_twice: int = 0
    stall_ms: int = 0
    """The longest time between two calls of the model while records came."""
    complaints: int = 0
    """Lines of the log that warn or report an error."""
    timed: bool = True
    """Whether pauses and lines count; beside other work they say more of the machine."""

    @property
    def kept(self) -> bool:
        """Whether everything held, and logins have ended."""
        calm = not self.timed or (not self.complaints and self.stall_ms <= _MOST_STALL_MS)
        return calm and not self.lost and not self.learnt_twice and self.tokens > self.seconds / self.lifetime_s

    def summary(self) -> dict[str, Any]:
        """Return the figures as the report holds them."""
        return {**asdict(self), "kept": self.kept}


@contextmanager
def asking_for_tokens(folder: Path, lifetime_s: float) -> Iterator[tuple[OidcProvider, LocalBroker, str]]:
    """Yield an endpoint, a broker that ends each login with its token, and the address that asks for one."""
    ports, settings = listeners({"OAUTH": "SASL_PLAINTEXT"})
    settings |= oauth_settings("oauth", folder / "keys.json", reauth_ms=round(lifetime_s * 1000))
    settings["broker.session.timeout.ms"] = "30000"  # a busy machine is none of what is tried here
    with (
        OidcProvider(lifetime_s=lifetime_s) as provider,
        trusting(provider, folder / "keys.json"),
        LocalBroker(folder / "broker", port=ports["PLAINTEXT"], settings=settings) as broker,
    ):
        yield provider, broker, f"127.0.0.1:{ports['OAUTH']}"


def watch(
    folder: Path, *, minutes: float, lifetime_s: float, seed: int, records_per_s: float = 5000.0, cold: bool = True
) -> LoginFigures:
    """Learn a stream through logins that end, and return what it came to."""
    figures = LoginFigures(seed=seed, seconds=minutes * 60, lifetime_s=lifetime_s)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "secret").write_text(SECRET)
    with (
        asking_for_tokens(folder, lifetime_s) as (provider, broker, address),
        Topic(broker.bootstrap_servers, f"tokens-{uuid.uuid4().hex[:8]}", PARTITIONS, Mixture(), seed) as topic,
    ):
        login = {"token_endpoint": provider.url, "client_id": CLIENT, "client_secret_file": str(folder / "secret")}
        project = Project(
            folder / "project",
            topic,
            kafka={
                "bootstrap_servers": [address],
                "security_protocol": "SASL_PLAINTEXT",
                "sasl_mechanism": "OAUTHBEARER",
                "oauth": login,
            },
            logs={"format": "json"},
        )
        with Run(project, failpoints="call.settled=sleep:0", cold=cold) as run:
            run.wait_for(run.ready, "the trainer is ready")
            topic.flow(records_per_s)
            run.wait_for(lambda: run.hits("call.settled") > 20, "it has learnt for a while")
            before = len(run.log())
            figures.stall_ms = _longest_pause_ms(project.path / "run-0.log", minutes * 60)
            topic.still()
            run.wait_for(lambda: run.settled() == topic.records, "all records are learnt")
            run.terminate()
            run.finish()
            said = [
                json.loads(line)
                for line in run.log()[before:].splitlines()
                if line.startswith("{") and line.endswith("}")
            ]
        complaints = [line for line in said if line["level"].upper() in _COMPLAINTS]
        figures.records, figures.tokens, figures.complaints = topic.records, len(provider.asked), len(complaints)
        for line in complaints[:10]:
            print(line, file=sys.stderr)  # noqa: T201 - a command
        end = Shelf(project.folder).newest()
        assert end is not None
        for number in range(PARTITIONS):
            due, seen = topic.evidence(number), end.seen[number]
            figures.lost += max(0, due.count - seen.count)
            figures.learnt_twice += max(0, seen.count - due.count)
            assert due == seen or figures.lost or figures.learnt_twice, "what was learnt is what was written"
    return figures


def _longest_pause_ms(log: Path, for_s: float) -> int:
    """Watch a log grow by a line for each call; return the longest pause between two."""
    began = last = time.monotonic()
    longest = 0.0
    with log.open("rb") as lines:
        lines.seek(0, 2)
        while (now := time.monotonic()) < began + for_s:
            if _CALL in lines.read():
                longest, last = max(longest, now - last), now
            time.sleep(_LOOK_S)
    return round(max(longest, now - last) * 1000)


def main() -> None:
    """Read the options, watch, print."""
    parser = argparse.ArgumentParser(description="Learn through logins that end.")
    parser.add_argument("--minutes", type=float, default=10.0, help="how long records come")
    parser.add_argument("--lifetime", type=float, default=60.0, help="of a token and of a login, in seconds")
    parser.add_argument("--rate", type=float, default=5000.0, help="records a second")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="draws the records")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="millrace-tokens-") as folder:
        found = watch(
            Path(folder), minutes=given.minutes, lifetime_s=given.lifetime, records_per_s=given.rate, seed=given.seed
        )
    print(json.dumps(found.summary(), indent=1))  # noqa: T201 - what the command is for
    sys.exit(int(not found.kept))


if __name__ == "__main__":
    main()
