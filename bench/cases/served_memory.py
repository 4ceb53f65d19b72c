"""What a memory of keys costs who asks `millrace serve`: latency, memory, and the time until it answers.

Two real servers answer with one export, whose model has sequences of 20 records. One has a memory of the keys that the
export carries, and follows a topic to which a process of its own writes at a steady rate; the other gets the sequences
in the requests. Clients in this process ask both at a fixed rate, in turns, and the topic goes on in both turns, as
others on this machine do. Memory is that of the one process less that of the other, for each key.
"""

import argparse
import http.client
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import tensorflow as tf
from rig import ROOT, STATE, other_work_s, report

from millrace.app.settings import Settings, load
from millrace.app.settings.exported_records import write_exported_records
from millrace.app.tools.export.exported_memory import window_shaper, write_exported_memory
from millrace.app.tools.local_broker.topics import create_topic
from millrace.consumers.records import Partition
from millrace.pipelines.shaping.windows.key_windows import KeyWindows
from millrace.pipelines.shaping.windows.windows import NAME as WINDOWS
from millrace.training.checkpoints.exports.version_folder import ExportDraft, ExportProof, ExportSource, VersionFolder
from millrace.training.checkpoints.part_files import VerifiedCheckpoint
from millrace.training.checkpoints.parts import PartState

NAME, LENGTH, PARTITIONS = "remembering", 20, 4
CLIENTS = 4
START_S, TURN_S = 300.0, 5.0
LINES = 200_000
RUN = "from millrace.app.cli import main; main()"
WRITE = """
import sys
from millrace.app.tools.local_broker.produce import ProduceRate, produce_lines

bootstrap, topic, rate, lines = sys.argv[1:]
while True:
    with open(lines, "rb") as file:
        produce_lines(bootstrap, topic, file, ProduceRate(rate=float(rate)))
"""


class Judge(tf.Module):  # type: ignore[misc]  # TensorFlow has no types
    """Two dense layers over a sequence."""

    def __init__(self) -> None:
        super().__init__()
        random = np.random.default_rng(7)
        shapes = ((3 * LENGTH, 128), (128, 1))
        self.weights = [tf.Variable(random.normal(0, 0.1, shape).astype(np.float32)) for shape in shapes]

    @tf.function(  # type: ignore[untyped-decorator]  # as above
        input_signature=[
            {
                "amount": tf.TensorSpec([None, LENGTH], tf.float32, "amount"),
                "card": tf.TensorSpec([None], tf.int64, "card"),
                "gaps": tf.TensorSpec([None, LENGTH], tf.float32, "gaps"),
                "known": tf.TensorSpec([None], tf.int32, "known"),
                "merchant": tf.TensorSpec([None, LENGTH], tf.int32, "merchant"),
            }
        ]
    )
    def answer(self, row: Any) -> dict[str, Any]:
        numbers = tf.concat([row["amount"], tf.math.log1p(row["gaps"]), tf.cast(row["merchant"], tf.float32)], 1)
        hidden = tf.nn.relu(numbers @ self.weights[0]) * tf.cast(row["known"], tf.float32)[:, None]
        return {"y": tf.sigmoid(hidden @ self.weights[1]), "card_there": row["card"]}


def configured(folder: Path, bootstrap: str, topic: str, memory: str) -> Path:
    """Write the config of a server, and return it."""
    path = folder / f"{'with' if memory == 'follow' else 'without'}.yaml"
    given = {
        "name": NAME,
        "kafka": {"bootstrap_servers": [bootstrap], "topics": [topic]},
        "records": {
            "features": {"card": "int64", "amount": "float32", "merchant": "int32"},
            "label": {"y": "float32"},
            "event_time": {"field": "at"},
        },
        "windows": {"by": "card", "length": LENGTH, "lengths": "known", "gaps": "gaps", "max_bytes": "1GiB"},
        "model": {"build": "./model.py:build_model"},
        "checkpoints": {"path": "./checkpoints"},
        "export": {"memory": "16GiB"},
        "serve": {"exports": f"./exports/{NAME}", "listen": "127.0.0.1:0", "drain": "0s"},
    }
    if memory:
        cast("dict[str, Any]", given["serve"])["memory"] = memory
    path.write_text(json.dumps(given))
    return path


def publish(folder: Path, settings: Settings, topic: str, keys: int) -> tuple[int, float]:
    """Publish the version, with so many keys that have a whole history; return how many, and the bytes of each."""
    shaper, random = window_shaper(settings), np.random.default_rng(3)
    history, states = shaper.layout.history, dict[Partition, tuple[int, KeyWindows]]()
    for number in range(PARTITIONS):
        state, some = KeyWindows(shaper.layout), keys // PARTITIONS
        columns: dict[str, Any] = {
            "features/amount": random.lognormal(3, 1, some * history).astype(np.float32),
            "features/merchant": random.integers(0, 1000, some * history).astype(np.int32),
            "times": np.tile(np.arange(history, dtype=np.int64) * 1000, some),
        }
        state.fill(range(number, keys, PARTITIONS)[:some], np.full(some, history, np.int64), columns)
        states[Partition(topic, number)] = (0, state)
    arrays, facts = shaper.saved_of(states)
    manifest = SimpleNamespace(positions=dict.fromkeys(map(str, states), 0))
    checkpoint = cast(
        "VerifiedCheckpoint",
        SimpleNamespace(parts={WINDOWS: PartState(arrays=arrays, facts=facts)}, manifest=manifest),
    )
    versions, model = VersionFolder(folder / "exports" / NAME), Judge()
    source = ExportSource(number=1, incarnation=1, parent=None, sha256="")
    with versions.writing(5.0):
        written = versions.draft_folder(1)
        tf.saved_model.save(model, str(written), {"serving_default": model.answer.get_concrete_function()})
        write_exported_records(settings, written)
        memory = write_exported_memory(settings, checkpoint, (), written)
        assert memory is not None
        draft = ExportDraft(
            name=NAME,
            number=1,
            checkpoint=source,
            positions={},
            records=0,
            metrics={},
            inputs={},
            outputs={},
            classes={},
            tensorflow=tf.__version__,
            keras="",
            proof=ExportProof(rows=0, records="kept", max_difference=0.0, tolerance=0.0),
            made_at=datetime.now(UTC).isoformat(),
            config_sha256="",
            model_sha256="",
            schema_sha256="",
            millrace="",
            memory=memory,
        )
        versions.publish(written, draft)
    return memory.keys, memory.bytes / max(1, memory.keys)


class Serving:
    """A server: its port, its process, how long it took to answer."""

    def __init__(self, config: Path) -> None:
        self._log = config.with_suffix(".log")
        began = time.monotonic()
        with self._log.open("wb") as file:
            words = [sys.executable, "-c", RUN, "serve", "-c", str(config)]
            self._process = subprocess.Popen(words, stderr=file, cwd=ROOT)
        while "answers now" not in (text := self._log.read_text()):
            if self._process.poll() is not None or time.monotonic() > began + START_S:
                raise SystemExit(text)
            time.sleep(0.02)
        self.start_s = time.monotonic() - began
        found = re.search(r"answering on http://[^:]+:(\d+)", text)
        assert found is not None
        self.port, self.pid = int(found[1]), self._process.pid

    @property
    def resident(self) -> int:
        """The memory of the process in bytes."""
        pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")

    def get(self, path: str) -> Any:
        """Return a document of ours."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        connection.request("GET", f"/v1/models/{NAME}{path}")
        return json.load(connection.getresponse())

    def close(self) -> None:
        """End it."""
        self._process.terminate()
        if self._process.wait(60) != 0:
            raise SystemExit(self._log.read_text())


def with_memory(random: Random, keys: int) -> dict[str, Any]:
    """Return a request with one record."""
    record = {"card": random.randrange(keys), "amount": 12.5, "merchant": 7}
    return {"instances": [record], "timestamps": [int(time.time() * 1000)]}


def without_memory(random: Random, keys: int) -> dict[str, Any]:
    """Return a request with the sequence of a record."""
    numbers = [round(random.lognormvariate(3, 1), 2) for _ in range(LENGTH)]
    row = {"amount": numbers, "gaps": [1.0] * LENGTH, "merchant": [7] * LENGTH, "known": LENGTH}
    return {"instances": [{**row, "card": random.randrange(keys)}]}


def asked(server: Serving, make: Callable[[Random, int], dict[str, Any]], keys: int, rate: float) -> list[float]:
    """Ask for some seconds; return how long each request took from when it was due."""
    took, failed = list[float](), list[str]()
    ends_at = time.monotonic() + TURN_S

    def client(number: int) -> None:
        random = Random(number)
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
        due = time.monotonic() + number / rate
        while due < ends_at:
            time.sleep(max(0.0, due - time.monotonic()))
            connection.request("POST", f"/v1/models/{NAME}:predict", json.dumps(make(random, keys)))
            answer = connection.getresponse()
            said = answer.read()
            if answer.status != 200:
                failed.append(f"{answer.status} {said!r}")
            took.append(time.monotonic() - due)
            due += CLIENTS / rate

    threads = [threading.Thread(target=client, args=(number,)) for number in range(CLIENTS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise SystemExit("\n".join(failed[:5]))
    return took


@contextmanager
def flowing(bootstrap: str, topic: str, folder: Path, keys: int, rate: int) -> Iterator[None]:
    """Write records to the topic at this rate, again and again the same, by a process of its own."""
    lines, random = folder / "records.jsonl", Random(5)
    with lines.open("w") as file:
        for at in range(LINES):
            record = {"card": random.randrange(keys), "amount": 9.5, "merchant": at % 1000, "at": at * 50, "y": 0.0}
            file.write(json.dumps(record) + "\n")
    words = [sys.executable, "-c", WRITE, bootstrap, topic, str(rate), str(lines)]
    with subprocess.Popen(words, cwd=ROOT, stdout=subprocess.DEVNULL) as process:
        try:
            yield
        finally:
            process.kill()


def main() -> None:
    """Read the options, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--keys", type=int, default=1_000_000)
    parser.add_argument("--turns", type=int, default=6)
    parser.add_argument("--rate", type=float, default=200.0, help="requests a second")
    parser.add_argument("--records", type=int, default=20_000, help="records a second")
    given = parser.parse_args()
    STATE.mkdir(parents=True, exist_ok=True)
    topic = f"remembering-{os.getpid()}"
    create_topic(given.bootstrap, topic, PARTITIONS)
    with tempfile.TemporaryDirectory(prefix="memory-", dir=STATE) as temporary:
        folder = Path(temporary)
        configs = [configured(folder, given.bootstrap, topic, memory) for memory in ("follow", "")]
        keys, state_bytes = publish(folder, load(configs[0]).settings, topic, given.keys)
        remembering, plain = (Serving(config) for config in configs)
        key_bytes = (remembering.resident - plain.resident) / keys
        times: dict[bool, list[float]] = {True: [], False: []}
        others_s, began = other_work_s(os.getpid(), remembering.pid, plain.pid), time.monotonic()
        with flowing(given.bootstrap, topic, folder, given.keys, given.records):
            while not any(remembering.get("/served")["memory"]["positions"].values()):
                time.sleep(0.1)
            read, since = remembering.get("/served")["memory"]["positions"], time.monotonic()
            for turn in range(given.turns):
                for memory in (True, False) if turn % 2 else (False, True):
                    server, make = (remembering, with_memory) if memory else (plain, without_memory)
                    times[memory] += asked(server, make, given.keys, given.rate)
            after, took_s = remembering.get("/served")["memory"], time.monotonic() - since
        others_s = (other_work_s(os.getpid(), remembering.pid, plain.pid) - others_s) / (time.monotonic() - began)
        for server in (remembering, plain):
            server.close()
    p99 = {memory: float(np.quantile(found, 0.99)) * 1000 for memory, found in times.items()}
    p50 = {memory: float(np.quantile(found, 0.5)) * 1000 for memory, found in times.items()}
    report(
        {
            "p99_ratio": p99[True] / p99[False],
            "key_bytes_of_state": key_bytes / state_bytes,
            "start_above_s": remembering.start_s - plain.start_s,
        },
        {
            "p99_ms": p99[True],
            "plain_p99_ms": p99[False],
            "p50_ms": p50[True],
            "plain_p50_ms": p50[False],
            "key_bytes": key_bytes,
            "start_s": remembering.start_s,
            "records_per_s": (sum(after["positions"].values()) - sum(read.values())) / took_s,
            "age_s": after["age_s"],
            "others_cores": others_s,
        },
    )


main()
