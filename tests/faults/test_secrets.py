"""Canaries where secrets are, and in records, through everything that goes wrong: nowhere to be found."""

import json
import os
import uuid
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from random import Random

import httpx
import pytest

from millrace.app.service.kept_history import unpacked
from millrace.app.tools.local_broker.topics import create_topic
from millrace.app.tools.traffic.single_writer import ExpectedPosition, Verdict
from millrace.consumers.reasons import Reason
from tests.faults.harness.fork_server import run_forked
from tests.faults.harness.guarded import OWNER
from tests.faults.harness.locked import USER, locked
from tests.faults.harness.process import ROOT, Run
from tests.faults.harness.project import Project
from tests.faults.harness.records import Mixture, good
from tests.faults.harness.topics import Topic
from tests.typed import understood, verbs

pytestmark = [pytest.mark.row(28), pytest.mark.slow, pytest.mark.broker, pytest.mark.timeout(600)]
PASSWORD, WRONG_PASSWORD = "canary-password-1f6e", "canary-wrong-password-77a0"
TOKEN, WRONG_TOKEN = "canary-token-8d2b90c4", "canary-wrong-token-53be"
TEXT = "canary-in-a-record-c41d"
NUMBER = 87654.5
"""What a record holds where the step, and `preprocess`, complain of it by its value."""
ORDERED = "canary-in-an-order-e0a9"
CANARIES = ("canary", str(NUMBER), str(int(NUMBER)))
ORDERS = ("pause", "resume", "checkpoints save", "rewind --to 1 --dry-run")
BESIDE_IT = ("status", "status --json")
AFTER_IT = (
    "config show",
    "config show --json",
    "checkpoints list",
    "checkpoints list --json",
    "checkpoints show 1",
    "checkpoints show 1 --json",
    "checkpoints verify",
    "checkpoints diff 0 1",
    "checkpoints pin 1",
    "checkpoints unpin 1",
    "dead-letters list",
    "dead-letters list --json",
    "dead-letters show 0:0",
    "dead-letters show 0:1 --json",
    "validate",
)
UNASKED = {
    "run": "all that it says is in its log, which is read",
    "init": "it writes a config by what it saw in records, for whoever asked for that",
    "pretrain": "it says numbers and names of files, and needs a name that has no checkpoint",
    "fork": "it says names and numbers of variables, and needs a name that has no checkpoint",
    "rebuild": "it says numbers and names of arrays and settings, and writes weights for whoever asked for that",
    "archive": "it writes records to shards, for whoever asked for that, and says numbers and names of files",
    "archive list": "it says numbers and names of files, and asks neither Kafka nor a service",
    "archive verify": "it says numbers and names of files, and asks neither Kafka nor a service",
    "archive prune": "it says numbers and names of files, and asks neither Kafka nor a service",
    "serve": "it says numbers and names of files, answers with what a model says, and has tests of its own",
    "data-service dispatcher": "it reads no config",
    "data-service worker": "it reads no config, and says numbers and names of files",
    "bench": "it says numbers and nothing else, and asks no service",
    "prove": "it makes records of its own",
    "demo": "it makes records of its own",
    "local broker": "it has no secret",
    "produce": "it says numbers and names of files, and sends what is in them for whoever asked for that",
    "local produce": "it makes records of its own",
    "local group": "it passes on what `run` says, which is read",
    "config schema": "it reads no config",
    "completion": "it reads no config",
    "version": "it reads no config",
    "export": "it says numbers and names of files, and writes weights for whoever asked for that",
    "checkpoints weights": "weights are what was learnt from records, for whoever asked for them",
    "dead-letters redrive": "it says how many letters there are by reason, and has tests of its own",
}
"""Verbs that say nothing in this test, and why."""
PREPROCESS = """

def preprocess(features, label, weight):
    tf.debugging.assert_less(features["curse"], 1000.0, summarize=10)
    return features, label, weight
"""


class Bad(Mixture):
    """Records that are refused, each with the canary in it; of every other two one that raises with its value."""

    def draw(self, place: ExpectedPosition, random: Random) -> tuple[bytes | None, Verdict]:
        record: dict[str, object] = {**good(place, random), "note": TEXT}
        kinds: list[tuple[bytes, Verdict]] = [
            (json.dumps(record).encode()[:-3], Reason.MALFORMED),
            (json.dumps({**record, "id": TEXT}).encode(), Reason.WRONG_TYPE),
            (json.dumps({**record, "x": [NUMBER] * 3}).encode(), Reason.WRONG_SHAPE),
            (json.dumps({**record, "partition": NUMBER}).encode(), Reason.WRONG_TYPE),
            (TEXT.encode() + b"\xff", Reason.MALFORMED),
            (json.dumps({**record, "curse": NUMBER}).encode(), Reason.STEP_RAISED),
        ]
        return kinds[place.offset % len(kinds)]


@pytest.fixture(scope="module")
def topic(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Topic, str]]:
    """Yield a topic with one writer, and the address at which reading it needs a password."""
    with locked(tmp_path_factory.mktemp("locked"), PASSWORD) as (broker, address):
        name = f"s-{uuid.uuid4().hex[:10]}"
        create_topic(broker.bootstrap_servers, f"{name}-dead", 1)
        with Topic(broker.bootstrap_servers, name, 1, Mixture(), 11) as made:
            yield made, address


def project_of(folder: Path, topic: Topic, address: str) -> Project:
    """Make a project with a secret in every place for secrets."""
    (folder / "tokens").mkdir(parents=True)
    (folder / "tokens" / OWNER).write_text(TOKEN)
    (folder / "password").write_text(PASSWORD)
    kafka = {
        "bootstrap_servers": [address],
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "PLAIN",
        "sasl_username": USER,
        "sasl_password_file": "./password",
    }
    made = Project(
        folder,
        topic,
        kafka=kafka,
        records={"dead_letters": {"topic": f"{topic.name}-dead"}},
        api={"tokens_dir": "./tokens"},
        logs={"format": "json", "level": "debug"},
    )
    model = folder / "model.py"
    model.write_text(model.read_text() + PREPROCESS)
    return made


def everything_said(url: str) -> Mapping[str, str]:
    """Return every page and answer that exists, by path."""
    described = httpx.get(f"{url}/openapi.json", timeout=60).json()["paths"]
    paths = {path for path, methods in described.items() if "get" in methods}
    asked = {path.replace("{number}", "1").replace("{operation_id}", "none") for path in paths}
    asked |= {
        "/",
        "/docs",
        "/openapi.json",
        "/metrics",
        "/livez?verbose",
        "/readyz?verbose",
        "/checkpoints/1?verify=true",
    }
    said = {path: httpx.get(f"{url}{path}", timeout=60).text for path in sorted(asked)}
    return said | {f"{path} as a stream": heard(url, path) for path in ("/events", "/page/updates")}


def heard(url: str, path: str) -> str:
    """Read a stream until it has reported all that has happened so far."""
    newest, said = httpx.get(f"{url}/events", timeout=60).json()["newest"], list[str]()
    with httpx.stream("GET", f"{url}{path}", headers={"accept": "text/event-stream"}, timeout=60) as answer:
        for line in answer.iter_lines():
            said.append(line)
            if line.startswith("data:") and f'"id":{newest},' in line:
                break
    assert said[-1].startswith("data:"), f"{path} ended before it had told event {newest}"
    return "\n".join(said)


def refused_orders(url: str) -> Mapping[str, str]:
    """Return the answers to commands that are refused, by command."""
    ways: dict[str, tuple[str, object, str]] = {
        "wrong token": ("/pause", None, WRONG_TOKEN),
        "wrong token in a body": ("/rewind", {"to": {"token": ORDERED}}, TOKEN),
        "a wrong type": ("/profile", {"calls": ORDERED}, TOKEN),
        "an unknown field": ("/rewind", {"to": 0, "password": ORDERED}, TOKEN),
        "no JSON": ("/checkpoints", ORDERED, TOKEN),
        "a long note": ("/checkpoints", {"note": ORDERED * 100}, TOKEN),
        "no checkpoint": (f"/checkpoints/{ORDERED}/restore", {}, TOKEN),
    }
    answers = {}
    for what, (path, body, token) in ways.items():
        answer = httpx.post(f"{url}{path}", json=body, headers={"authorization": f"Bearer {token}"}, timeout=60)
        assert 400 <= answer.status_code < 500, what
        answers[what] = f"{answer.text} {dict(answer.headers)}"
    return answers


def told_by(commands: Iterable[str], made: Project, *more: str) -> Mapping[str, str]:
    """Return what the command line prints of it, by command line."""
    told = {}
    for command in commands:
        words = [*command.split(), "-c", str(made.config), *more]
        done = run_forked(words, cwd=ROOT, env=os.environ)
        assert done.returncode == 0, done.stdout + done.stderr
        told[command] = done.stdout + done.stderr
    return told


def written(made: Project) -> Mapping[str, str]:
    """Return all that is on disk except secrets, config and weights; includes logs and manifests."""
    kept = {made.config, made.path / "password", made.path / "model.py", made.path / "tokens" / OWNER}
    files = [path for path in made.path.rglob("*") if path.is_file() and path not in kept]
    texts = {str(path.relative_to(made.path)): path.read_text(errors="replace") for path in files}
    histories = [path for path in files if path.parent.name == "history"]
    assert histories
    # Its words are compressed.
    texts |= {str(path.relative_to(made.path)): str(unpacked(path.read_bytes())[1]) for path in histories}
    assert any(name.endswith("manifest.json") for name in texts)
    return {name: text for name, text in texts.items() if not name.endswith(".safetensors")}


def test_every_verb_is_listened_to_or_named_with_a_reason_why_not() -> None:
    asked = {understood(command.split(), whole=False) for command in (*ORDERS, *BESIDE_IT, *AFTER_IT)}
    assert asked & UNASKED.keys() == set()
    assert asked | UNASKED.keys() == verbs().keys()


def test_no_secret_and_no_value_of_a_record_appears_anywhere_after_every_failure(
    topic: tuple[Topic, str], tmp_path: Path
) -> None:
    source, address = topic
    made = project_of(tmp_path / "project", source, address)
    url = f"http://127.0.0.1:{made.port}"
    places: dict[str, str] = {}
    with Run(made) as run:
        run.wait_for(run.ready, "it was ready")
        source.write(300)
        source.write(24, Bad())
        source.write(300)
        run.wait_for(lambda: run.settled() == source.records, "all was settled")
        set_aside = run.status()["records"]["set_aside"]
        assert {"malformed", "wrong_type", "wrong_shape", "step_raised"} <= set(set_aside)
        places |= refused_orders(url)
        (tmp_path / "project" / "tokens" / "broken").write_text(f"{TOKEN} {TOKEN}")
        saved = httpx.post(f"{url}/checkpoints?wait=60s", headers={"authorization": f"Bearer {TOKEN}"}, timeout=90)
        assert saved.status_code == 201
        places |= told_by(ORDERS, made, "--token-file", str(made.path / "tokens" / OWNER))
        places |= told_by(BESIDE_IT, made)
        places |= everything_said(url)
        run.terminate()
        run.finish()
    (tmp_path / "project" / "tokens" / "broken").unlink()
    places |= told_by(AFTER_IT, made)
    (tmp_path / "project" / "password").write_text(WRONG_PASSWORD)
    with Run(made) as run:
        assert run.exit_code() == 2, run.tail()
    places |= written(made)
    assert len(places) > 50
    assert sum("ordered by ops over HTTP" in text for text in places.values()) >= 1
    found = {(canary, where) for where, text in places.items() for canary in CANARIES if canary in text}
    assert found == set()
