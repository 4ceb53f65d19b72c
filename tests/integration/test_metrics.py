"""What a real service tells Prometheus while it learns, and what Kafka's own tool says of the same."""

import json
import re
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from random import Random

import httpx
import pytest
from typer.testing import CliRunner

from millrace.app.cli.command_list import application
from millrace.app.monitoring.metrics.catalogue import CATALOGUE
from millrace.app.tools.local_broker.topics import create_topic
from millrace.consumers.reasons import Reason
from tests.app.metrics_text import Scrape, complaints
from tests.conftest import WaitFor
from tests.faults.harness.kafka import committed
from tests.faults.harness.process import Run
from tests.faults.harness.project import FEATURES, Project
from tests.faults.harness.records import WIDTH, ExpectedPosition, Mixture, Verdict, good
from tests.faults.harness.topics import Topic
from tests.integration.consumer_groups import describe

pytestmark = [pytest.mark.broker, pytest.mark.slow, pytest.mark.timeout(300)]
PARTITIONS = 2
LONG_EACH = 10
"""Of so many records one has a longer list than its feature holds."""


class SomeLong(Mixture):
    """Records of which some are malformed, and others have too long a list, which is no reason not to learn them."""

    def draw(self, place: ExpectedPosition, random: Random) -> tuple[bytes | None, Verdict]:
        """Draw one record."""
        if place.offset % LONG_EACH:
            return super().draw(place, random)
        return json.dumps({**good(place, random), "x": [0.5] * (WIDTH + 2)}).encode(), None


@dataclass(frozen=True)
class Learning:
    """A service, and the topic that it learns from."""

    topic: Topic
    project: Project
    run: Run

    def scrape(self) -> Scrape:
        answer = httpx.get(f"http://127.0.0.1:{self.project.port}/metrics", timeout=60)
        assert answer.status_code == 200
        return Scrape(answer.text)

    @property
    def long(self) -> int:
        """How many records with too long a list were written."""
        return sum(len(range(0, len(verdicts), LONG_EACH)) for verdicts in self.topic.verdicts)

    def typed(self, *arguments: str) -> str:
        """Return what a command prints about it."""
        done = CliRunner().invoke(application, [*arguments, "-c", str(self.project.config)], catch_exceptions=False)
        assert done.exit_code == 0, done.output
        return done.stdout

    def learnt_all(self) -> bool:
        """Return whether all that was written has been learnt."""
        return self.run.settled() == sum(map(len, self.topic.verdicts))


@pytest.fixture(scope="module")
def learning(broker: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Learning]:
    """One for all tests here; it has a feature of varying length, and a topic for letters about malformed records."""
    name = f"m-{uuid.uuid4().hex[:10]}"
    create_topic(broker, f"{name}.dead")
    with Topic(broker, name, PARTITIONS, SomeLong(share=0.05, kinds=[Reason.MALFORMED]), seed=3) as topic:
        features = {**FEATURES, "x": {"dtype": "float32", "shape": [WIDTH], "pad": 0.0}}
        records = {"dead_letters": {"topic": f"{name}.dead"}, "features": features}
        project = Project(tmp_path_factory.mktemp("metrics"), topic, records=records)
        topic.write(400)
        with Run(project) as run:
            run.wait_for_first_call()
            yield Learning(topic, project, run)


ELSEWHERE = (
    *("group_", "api_certificate_", "detector_", "class_", "label_", "window_", "reservoir_", "export"),
    *("golden_", "feature_", "gpu_", "join_", "arrival_", "members_", "slice_", "calibration_residual", "mirror_"),
    *("input_", "served_", "otlp_", "mlflow_"),
)
"""What only a worker of a group tells, only a service with TLS, only one that balances classes, learns windows,
remembers rows, has detectors, exports, a golden set, features with a scale, a GPU, labels that come later, members,
slices, labels that are numbers, a mirror, predictions that servers log, metrics sent by OTLP, an MLflow server, or
has learnt a window of inputs; each has tests of its own."""


def test_every_metric_of_the_catalogue_is_told_once_it_has_learnt_and_no_other(
    learning: Learning, wait_for: WaitFor
) -> None:
    catalogue = {metric.name for short, metric in CATALOGUE.items() if not short.startswith(ELSEWHERE)}
    wait_for(lambda: set(learning.scrape().families) >= catalogue, timeout=60)
    scrape = learning.scrape()
    assert set(scrape.families) == catalogue
    assert complaints(scrape.text) == ""
    labels = [set(sample.labels) for family in scrape.families.values() for sample in family.samples]
    assert all("model" in names for names in labels)


def test_what_it_tells_is_what_was_written(learning: Learning, wait_for: WaitFor) -> None:
    wait_for(learning.learnt_all, timeout=60)
    scrape, verdicts = learning.scrape(), [verdict for each in learning.topic.verdicts for verdict in each]
    assert scrape.value("records_learnt_total") == verdicts.count(None)
    assert scrape.value("records_set_aside_total", reason="malformed") == verdicts.count(Reason.MALFORMED) > 0
    assert scrape.value("records_truncated_total", feature="x") == learning.long > 0
    assert list(scrape.law) == [len(verdicts)] * 2
    assert [scrape.value(short) for short in ("lag_records", "lag_seconds")] == [0, 0]
    assert [scrape.value(short) for short in ("balanced", "kafka_connected", "ready")] == [1, 1, 1]


def test_a_topic_that_is_learnt_as_fast_as_it_comes_is_the_limit(learning: Learning, wait_for: WaitFor) -> None:
    wait_for(learning.learnt_all, timeout=60)
    wait_for(lambda: learning.run.ask("GET", "/throughput")[1]["bound_by"] == "records", timeout=60)
    assert learning.run.ask("GET", "/throughput")[1]["advice"].startswith("The topic is the limit")


def test_the_lists_that_were_cut_are_counted_wherever_records_are(learning: Learning, wait_for: WaitFor) -> None:
    wait_for(learning.learnt_all, timeout=60)
    code, saved = learning.run.ask("POST", "/checkpoints?wait=30s")
    assert code == 201
    number = saved["checkpoint"]["number"]
    history = learning.run.ask("GET", f"/checkpoints/{number}")[1]["history"].values()
    shown = re.findall(
        r": learnt .*, (\d+) cut in x$", learning.typed("checkpoints", "show", str(number)), re.MULTILINE
    )
    told = {
        "/status": learning.run.status()["records"]["truncated"]["x"],
        "/checkpoints": sum(partition["truncated"]["x"] for partition in history),
        "checkpoints show": sum(map(int, shown)),
    }
    assert told == dict.fromkeys(told, learning.long)
    assert f"; {learning.long:,} cut in x\n" in learning.typed("status")


def test_no_counter_goes_back_and_the_law_holds_while_it_learns_and_rewinds(
    learning: Learning, wait_for: WaitFor
) -> None:
    learning.topic.flow(2000)
    learning.run.ask("POST", "/rewind", {"to": 0})
    scrapes = [learning.scrape()]

    def gone_back_and_on() -> bool:
        scrapes.append(learning.scrape())
        return scrapes[-1].value("records_discarded_total") > 0 or scrapes[-1].value("incarnation") > 1

    wait_for(gone_back_and_on, timeout=60)
    scrapes += [learning.scrape() for _ in range(50)]
    learning.topic.still()
    assert [scrape.law for scrape in scrapes if scrape.law[0] != scrape.law[1]] == []
    for before, after in pairwise(scrapes):
        counters = after.counters
        assert [name for name, value in before.counters.items() if counters[name] < value] == []
    assert scrapes[-1].value("records_learnt_total") > scrapes[-1].value("history_offsets", outcome="learnt")


def test_lag_is_what_kafkas_own_tool_says(learning: Learning, wait_for: WaitFor, tmp_path: Path) -> None:
    topic, run, group = learning.topic, learning.run, learning.project.group
    wait_for(learning.learnt_all, timeout=60)
    assert run.ask("POST", "/pause")[0] == 200
    topic.write(123)
    wait_for(lambda: run.ask("GET", "/lag")[1]["lag_records"] == 123 * PARTITIONS, timeout=30)
    assert run.ask("POST", "/checkpoints?wait=30s")[0] == 201
    lag = run.ask("GET", "/lag")[1]["partitions"]
    ours = {name: (one["position"], one["end"], one["lag_records"]) for name, one in lag.items()}
    positions = {number: lag[f"{topic.name}:{number}"]["position"] for number in range(PARTITIONS)}
    wait_for(lambda: committed(topic.bootstrap, group, topic.name, PARTITIONS) == positions, timeout=30)
    theirs = describe(topic.bootstrap, group, tmp_path)
    assert ours == {name: (one.current, one.end, one.lag) for name, one in theirs.items()}
    assert all(one.lag == 123 for one in theirs.values())
    assert run.ask("POST", "/resume")[0] == 200
    wait_for(learning.learnt_all, timeout=60)
