"""Labels that come later, on a topic of their own, with a real Kafka: each record learns what came for its key in time.

The model has a table of what it learnt, by the number of each record; so its labels are the weights' own testimony.
"""

import json
import os
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from millrace.app.tools.local_broker.broker import free_port
from millrace.app.tools.prove.checkpoint_reader import Shelf
from millrace.training.checkpoints.folder import Folder
from tests.conftest import MakeTopic, Produce, WaitFor
from tests.faults.harness.fork_server import ForkedProcess, fork_trainer, millrace, run_forked
from tests.integration.test_recreated_topics import create_again, delete

pytestmark = [pytest.mark.broker, pytest.mark.slow]
WITHIN_MS, EARLY_MS = 600_000, 60_000
MODEL = """\
import keras
import tensorflow as tf

MOST = 4096


class Seen(keras.layers.Layer):
    def __init__(self, **options):
        super().__init__(**options)
        self.table = self.add_weight(name="table", shape=(MOST, 2), initializer="zeros", trainable=False)

    def call(self, inputs):
        return inputs


class Counting(keras.Model):
    def train_step(self, data):
        features, labels, weights = data
        labels = labels["clicked"] if isinstance(labels, dict) else labels
        present = tf.cast(tf.reshape(weights, [-1]) > 0, tf.float32)
        rows = tf.stack([present, present * tf.reshape(labels, [-1])], 1)
        ids = tf.cast(tf.reshape(features["number"], [-1]), tf.int32)
        self.seen.table.value.assign_add(tf.math.unsorted_segment_sum(rows, ids, MOST))
        return super().train_step(data)


def build_model():
    inputs = {"x": keras.Input((1,), name="x"), "number": keras.Input((), name="number", dtype="int64")}
    seen = Seen(name="seen")
    hidden = keras.layers.Dense(4)(seen(inputs["x"]))
    model = Counting(inputs, keras.layers.Dense(1, activation="sigmoid", name="clicked")(hidden))
    model.seen = seen
    model.compile(optimizer="sgd", loss="binary_crossentropy", metrics=["accuracy"])
    return model
"""


def project(folder: Path, broker: str, records: str, labels: str, **changed: Any) -> Path:
    """Write a model and a config; return the config's path."""
    folder.mkdir(exist_ok=True)
    (folder / "model.py").write_text(MODEL)
    settings = {
        "name": "ads",
        "kafka": {"bootstrap_servers": [broker], "topics": [records]},
        "records": {"features": {"x": {"dtype": "float32", "shape": [1]}, "number": "int64"}},
        "labels": {
            "topics": [labels],
            "join": {"record": "impression_id"},
            "label": {"clicked": {"dtype": "float32", "absent": 0.0}},
            "within": f"{WITHIN_MS}ms",
            "early": f"{EARLY_MS}ms",
            **changed,
        },
        "model": {"build": "./model.py:build_model"},
        "training": {"batch_size": 16},
        "checkpoints": {"path": "./checkpoints"},
        "api": {"listen": "127.0.0.1:0"},
    }
    path = folder / "ads.yaml"
    path.write_text(json.dumps(settings))  # JSON is YAML
    return path


def newest(folder: Path) -> Path:
    return max(folder.glob("checkpoints/ads/checkpoints/*/manifest.json")).parent


def learnt(folder: Path) -> tuple[list[int], list[float]]:
    """Return how often each record was learnt, and the sum of its labels, from the weights."""
    shelf = Shelf(Folder(folder / "checkpoints" / "ads"))
    number = shelf.newest_number()
    assert number is not None
    found = shelf.statement(number)
    table = next(array for name, array in found.arrays.items() if name.endswith("seen/table"))
    return table[:, 0].astype(int).tolist(), table[:, 1].tolist()


def impression(number: int, key: str) -> bytes:
    return json.dumps({"x": [0.5], "number": number, "impression_id": key}).encode()


def click(key: str, value: float = 1.0) -> bytes:
    return json.dumps({"impression_id": key, "clicked": value}).encode()


def test_each_record_learns_what_came_for_its_key_in_time(
    broker: str, topic: MakeTopic, produce: Produce, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    impressions, clicks = topic(partitions=2), topic(partitions=2)
    began = round(time.time() * 1000) - 4 * 3600_000
    step = 1_000
    produce(
        impressions,
        [(number % 2, impression(number, f"i{number}")) for number in range(1000)],
        timestamps=[began + number * step for number in range(1000)],
    )
    # Each third is clicked after half of the time, each seventh too late, and there are clicks of nobody.
    found = sorted(
        [(began + n * step + WITHIN_MS // 2, f"i{n}") for n in range(0, 1000, 3)]
        + [(began + n * step + WITHIN_MS + 1, f"i{n}") for n in range(0, 1000, 7)]
        + [(began + n * step, f"nobody{n}") for n in range(0, 2000, 10)]
    )
    produce(clicks, [(at % 2, click(key)) for at, (_, key) in enumerate(found)], timestamps=[time for time, _ in found])
    config = project(tmp_path, broker, impressions, clicks)
    with monkeypatch.context() as group:
        group.setenv("MILLRACE_SCALE__WORKERS", "2")
        group.setenv("MILLRACE_SCALE__INDEX", "0")
        said = millrace("validate", "-c", str(config))
        # Here the two lie in partitions of the same number only now and then.
        group.setenv("MILLRACE_LABELS__CO_PARTITIONED", "true")
        with pytest.raises(subprocess.CalledProcessError) as refused:
            millrace("validate", "-c", str(config))
    assert "sampled records have their label in a partition of another number" in refused.value.stdout
    assert "677 sampled labels decode" in said
    assert "each of 2 workers reads all labels: 677 are there, about 28.8 kB, 2 times" in said
    assert "42.9% of 1,000 sampled records have a label" in said
    assert "come later than labels.within" in said
    millrace("run", "-c", str(config), "--until", "now")
    times, labels = learnt(tmp_path)
    assert times[:1000] == [1] * 1000
    assert labels[:1000] == [float(number % 3 == 0) for number in range(1000)]
    facts = json.loads((newest(tmp_path) / "labels.json").read_text())
    counts = [one["counts"] for one in facts["partitions"].values()]
    assert sum(one["labelled"] for one in counts) == 334
    assert sum(one["absent"] for one in counts) == 666
    # All of them came after five minutes.
    delays = [one["delays"] for one in facts["partitions"].values()]
    assert sorted(sum(one) for one in delays) == sorted(one["labelled"] for one in counts)
    assert {count > 0 for one in delays for count in one[:-1]} == {False}


@pytest.mark.nightly  # in the gate a trainer that joins is killed
def test_what_was_joined_goes_on_where_it_stopped_and_is_counted_once(
    broker: str, topic: MakeTopic, produce: Produce, tmp_path: Path
) -> None:
    impressions, clicks = topic(partitions=1), topic(partitions=1)
    began = round(time.time() * 1000) - 4 * 3600_000
    config = project(
        tmp_path, broker, impressions, clicks, label={"clicked": "float32"}, take="sum", on_silence="absent"
    )
    ends = [0]
    for part in range(3):
        numbers = range(part * 300, part * 300 + 300)
        produce(
            impressions,
            [(0, impression(number, f"i{number}")) for number in numbers],
            timestamps=[began + number * 1000 for number in numbers],
        )
        # Every fourth is clicked twice, the second time when the next part is there.
        once = [(began + n * 1000 + 1000, f"i{n}") for n in numbers if n % 4 == 0]
        twice = [(began + n * 1000 + 30_000, f"i{n}") for n in numbers if n % 4 == 0]
        found = sorted([*once, *twice])
        produce(clicks, [(0, click(key, 2.0)) for _, key in found], timestamps=[at for at, _ in found])
        ends.append(numbers.stop)
    for end in ends[1:]:
        millrace("run", "-c", str(config), "--until", f"{impressions}:0={end}")
    times, labels = learnt(tmp_path)
    assert times[:900] == [int(number % 4 == 0) for number in range(900)]
    assert labels[:900] == [4.0 * (number % 4 == 0) for number in range(900)]
    facts = json.loads((newest(tmp_path) / "labels.json").read_text())
    [account] = facts["partitions"].values()
    assert account["counts"] == {"labelled": 225, "absent": 0, "dropped": 675, "too_old": 0}
    assert facts["labels"]["expired"] == {"used": 450}


@pytest.mark.nightly  # the campaign in the gate cuts labels out
def test_a_rewind_can_cut_labels_out_and_bring_them_back(
    broker: str, topic: MakeTopic, produce: Produce, tmp_path: Path
) -> None:
    impressions, clicks = topic(partitions=1), topic(partitions=1)
    began = round(time.time() * 1000) - 4 * 3600_000
    times = [began + number * 1000 for number in range(600)]
    produce(impressions, [(0, impression(number, f"i{number}")) for number in range(600)], timestamps=times)
    clicked = [number for number in range(600) if number % 3 == 0]
    beats = [(click("nobody"), times[-1] + WITHIN_MS + EARLY_MS + 1)]
    found = [*((click(f"i{number}"), times[number] + 1000) for number in clicked), *beats]
    produce(clicks, [(0, one) for one, _ in found], timestamps=[at for _, at in found])
    config = project(tmp_path, broker, impressions, clicks)
    settings = json.loads(config.read_text())
    exact = {"batch_size": 16, "batches_per_call": 1, "deterministic": True, "max_wait": None, "replicas": 1}
    config.write_text(json.dumps({**settings, "training": exact}))

    def seen() -> list[int]:
        """Return which records were learnt as clicked, after all of them were learnt once."""
        millrace("run", "-c", str(config), "--until", f"{impressions}:0=600")
        counts, labels = learnt(tmp_path)
        assert counts[:600] == [1] * 600
        return [number for number in range(600) if labels[number]]

    def rewind(*words: str) -> None:
        millrace("rewind", "-c", str(config), "--to", str(half), "--reason", "fraud", *words)

    millrace("run", "-c", str(config), "--until", f"{impressions}:0=304")
    half = json.loads((newest(tmp_path) / "manifest.json").read_text())["number"]
    assert seen() == clicked
    # From the label of record 360 to that of record 447.
    cut = range(120, 150)
    with pytest.raises(subprocess.CalledProcessError):
        rewind("--skip", "nobody:0:1-2")
    rewind("--skip", f"{clicks}:0:{cut.start}-{cut.stop - 1}")
    without = [*clicked[: cut.start], *clicked[cut.stop :]]
    assert seen() == without
    account = json.loads((newest(tmp_path) / "labels.json").read_text())["labels"]
    assert account["expired"].get("skipped", 0) + account["waiting"] >= len(cut)
    assert account["expired"].get("used", 0) <= len(without)
    lifted = json.loads((newest(tmp_path) / "ledger.json").read_text())["skips"][0]["order"]
    millrace("rebuild", "-c", str(config))
    rewind("--unskip", lifted)
    assert seen() == clicked
    millrace("rebuild", "-c", str(config))


@dataclass
class Service:
    """A running service, and how to ask it."""

    process: ForkedProcess
    url: str

    def ask(self, path: str, body: Any = None, *, method: str = "GET") -> tuple[int, Any]:
        """Return the code and the answer."""
        content = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            f"{self.url}{path}", content, {"content-type": "application/json"}, method=method
        )
        try:
            with urllib.request.urlopen(request, timeout=10) as answer:
                return answer.status, json.loads(answer.read())
        except urllib.error.HTTPError as error:
            return error.code, json.loads(error.read())
        except OSError:
            return 0, {}

    def joined(self) -> dict[str, int]:
        """Return what became of the records."""
        _, status = self.ask("/status")
        found: dict[str, int] = ((status.get("training") or {}).get("join") or {}).get("records", {})
        return found


@contextmanager
def running(config: Path, port: int) -> Iterator[Service]:
    process = fork_trainer(["run", "-c", str(config)], config.parent, os.environ, config.parent / "run.log")
    try:
        yield Service(process, f"http://127.0.0.1:{port}")
    finally:
        process.terminate()
        process.wait(60)
        process.kill()


def test_silence_is_not_taken_for_no_until_a_person_says_so(
    broker: str, topic: MakeTopic, produce: Produce, tmp_path: Path, wait_for: WaitFor
) -> None:
    impressions, clicks = topic(partitions=2), topic(partitions=2)
    config, port = project(tmp_path, broker, impressions, clicks, within="2s", early="500ms"), free_port()
    settings = json.loads(config.read_text())
    config.write_text(json.dumps({**settings, "api": {"listen": f"127.0.0.1:{port}"}}))

    def now() -> int:
        return round(time.time() * 1000)

    def stream(numbers: range, *, labels: bool) -> None:
        """Write records of the last moments, fifty a second, each third with a label, however long that takes."""
        times = [now() - 20 * (numbers.stop - number) for number in numbers]
        produce(impressions, [(number % 2, impression(number, f"i{number}")) for number in numbers], timestamps=times)
        if labels:
            keys = [f"i{number}" if number % 3 == 0 else "nobody" for number in numbers]
            found = [(number % 2, click(key)) for number, key in zip(numbers, keys, strict=True)]
            produce(clicks, found, timestamps=times)

    with running(config, port) as service:
        wait_for(lambda: service.ask("/readyz")[0] == 200, timeout=60)
        stream(range(150), labels=True)
        stream(range(150, 160), labels=False)
        # What came before the labels ended is learnt; the rest waits, and nothing counts as absent for that.
        wait_for(
            lambda: "labels_silent" in {one["problem"] for one in service.ask("/status")[1]["problems"]}, timeout=30
        )
        before = service.joined()
        assert "on_arrival" not in service.ask("/status")[1]["training"], "what waits is predicted by nobody"
        assert before["labelled"] <= 50
        assert sum(before.values()) < 160
        assert service.ask("/readyz")[0] == 503
        code, answer = service.ask("/resume", {}, method="POST")
        assert (code, answer["title"]) == (409, "Labels Silent")
        millrace("resume", "--url", service.url, "--assume-absent")
        wait_for(lambda: service.joined() == {"labelled": 50, "absent": 110, "dropped": 0, "too_old": 0}, timeout=30)
        # Labels come again, and it goes on by itself; a record is learnt soon after it is due.
        stream(range(160, 190), labels=True)
        # A heartbeat is a label of nobody.
        beats = [(0, click("nobody")), (1, click("nobody"))]
        wait_for(
            lambda: produce(clicks, beats, timestamps=[now()] * 2) and service.joined()["labelled"] == 60, timeout=30
        )
        assert service.ask("/lag")[1]["lag_records"] == 0
    times, labels = learnt(tmp_path)
    assert times[:190] == [1] * 190
    assert labels[:190] == [float(number % 3 == 0 and not 150 <= number < 160) for number in range(190)]


@pytest.mark.row(44)
def test_what_was_predicted_on_arrival_survives_a_kill(
    broker: str, topic: MakeTopic, produce: Produce, tmp_path: Path, wait_for: WaitFor
) -> None:
    impressions, clicks = topic(partitions=2), topic(partitions=2)
    port = free_port()
    config = project(tmp_path, broker, impressions, clicks, score_on_arrival=1.0)
    settings = json.loads(config.read_text())
    config.write_text(json.dumps({**settings, "api": {"listen": f"127.0.0.1:{port}"}}))
    began = round(time.time() * 1000) - 4 * 3600_000

    def appear(numbers: range, after_ms: int) -> None:
        """Write records and their labels, which are joined when the labels of a later time come."""
        times = [began + after_ms + number for number in numbers]
        shown = [(number % 2, impression(number, f"i{number}")) for number in numbers]
        produce(impressions, shown, timestamps=times)
        found = [(at, number) for at, number in zip(times, numbers, strict=True) if number % 3 == 0]
        produce(clicks, [(number % 2, click(f"i{number}")) for _, number in found], timestamps=[at for at, _ in found])

    def pass_time(until_ms: int) -> None:
        """Write a label of nobody into each partition."""
        produce(clicks, [(0, click("nobody")), (1, click("nobody"))], timestamps=[began + until_ms] * 2)

    def scored(service: Service) -> dict[str, Any]:
        found: dict[str, Any] = (service.ask("/status")[1].get("training") or {}).get("on_arrival") or {}
        return found

    later = WITHIN_MS + EARLY_MS + 1000
    with running(config, port) as service:
        wait_for(lambda: service.ask("/readyz")[0] == 200, timeout=180)
        appear(range(100), 0)
        wait_for(lambda: scored(service).get("waiting") == 100, timeout=25)
        assert service.joined()["labelled"] == 0
        millrace("checkpoints", "save", "--url", service.url)
        service.process.kill()
    # What comes while the trainer is away is predicted by nobody.
    appear(range(100, 130), 0)
    pass_time(later)
    with running(config, port) as service:
        wait_for(lambda: sum(service.joined().values()) == 130, timeout=180)
        found = scored(service)
        assert (found["scored"], found["missed"], found["waiting"]) == (100, 30, 0)
        assert 0 <= found["values"]["accuracy"] <= 1
        assert "Predicted on arrival" in millrace("status", "--url", service.url, "--once")
        # What waits for its labels now is estimated by those that came, and scores about that when its own have come.
        appear(range(130, 330), later)
        wait_for(lambda: scored(service)["waiting"] == 200, timeout=25)
        pass_time(2 * later)
        wait_for(lambda: scored(service)["scored"] == 300, timeout=120)
        found = scored(service)
        assert found["expected"] == {}, "nothing waits"
        appear(range(330, 530), 2 * later)
        wait_for(lambda: scored(service)["waiting"] == 200, timeout=25)
        expected = scored(service)["expected"]["accuracy"]
        assert "Expected of 200 predictions without labels yet, an estimate: accuracy" in millrace(
            "status", "--url", service.url, "--once"
        )
        pass_time(3 * later)
        wait_for(lambda: scored(service)["scored"] == 500, timeout=120)
        before, after = (one["records"] * one["values"]["accuracy"] for one in (found, scored(service)))
        assert expected == pytest.approx((after - before) / 200, abs=0.03)
    times, labels = learnt(tmp_path)
    assert times[:530] == [1] * 530
    assert labels[:530] == [float(number % 3 == 0) for number in range(530)]


def test_init_finds_the_key_the_label_and_how_late_it_comes(
    broker: str, topic: MakeTopic, produce: Produce, tmp_path: Path
) -> None:
    impressions, clicks = topic(partitions=1), topic(partitions=1)
    began = round(time.time() * 1000) - 4 * 3600_000
    prices = [n % 17 + 0.5 for n in range(1500)]
    shown = [{"price": price, "hour": n % 24, "shown": f"view-{n}"} for n, price in enumerate(prices)]
    produce(impressions, [json.dumps(one).encode() for one in shown], timestamps=[began + 100 * n for n in range(1500)])
    # Cheap ones are clicked, within nine seconds.
    clicked = [n for n, price in enumerate(prices) if price < 5]
    came = sorted((began + 100 * n + 1_000 * (n % 10), n) for n in clicked)
    produce(
        clicks,
        [json.dumps({"view": f"view-{n}", "bought": 1}).encode() for _, n in came] + [b'{"view": "none", "bought": 1}'],
        timestamps=[*(at for at, _ in came), began + 600_000],
    )
    drafted = ("init", "--topic", impressions, "--labels-topic", clicks, "--bootstrap-servers", broker)
    said = json.loads(millrace(*drafted, "--out", str(tmp_path), "--name", "ads", "--json"))
    assert (said["label"], said["task"]) == ("bought", "binary")
    assert said["features"] == ["price", "hour"]
    assert said["labels"] == {"topic": clicks, "key": ["shown", "view"], "within": "20s"}
    config = tmp_path / "millrace.yaml"
    assert "all of" in millrace("validate", "-c", str(config))
    millrace("run", "-c", str(config), "--until", "now")
    facts = json.loads((newest(tmp_path) / "labels.json").read_text())
    [account] = facts["partitions"].values()
    assert account["counts"] == {"labelled": len(clicked), "absent": 1500 - len(clicked), "dropped": 0, "too_old": 0}


def test_labels_of_a_topic_that_was_created_again_end_the_run(
    broker: str, topic: MakeTopic, produce: Produce, tmp_path: Path, wait_for: WaitFor
) -> None:
    impressions, clicks = topic(partitions=1), topic(partitions=1)
    began = round(time.time() * 1000) - 4 * 3600_000
    config = project(tmp_path, broker, impressions, clicks, on_silence="absent")
    times = [began + 100 * n for n in range(100)]
    produce(impressions, [impression(n, f"i{n}") for n in range(100)], timestamps=times)
    produce(clicks, [click(f"i{n}") for n in range(50)], timestamps=times[:50])
    millrace("run", "-c", str(config), "--until", f"{impressions}:0=60")
    delete(broker, clicks)
    create_again(broker, clicks, wait_for)
    produce(clicks, [click(f"i{n}", 0.0) for n in range(100)], timestamps=times)
    run = ["run", "-c", str(config), "--until", f"{impressions}:0=100"]
    done = run_forked(run, cwd=tmp_path, env=os.environ, timeout=180)
    assert done.returncode != 0
    assert f"{clicks}:0" in done.stderr.splitlines()[-1]
    assert "created again" in done.stderr.splitlines()[-1]
    assert learnt(tmp_path)[0][:100] == [1] * 60 + [0] * 40
