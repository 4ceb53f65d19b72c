"""What a group of workers gains and costs, and how soon it is back after a kill.

Processes of `millrace run` as users have them, each pinned to a core of its own, at batches of 4,096 rows a worker: one
worker, then two on the same topic; with `--ways` also two that share a batch of 4,096, and three, which have more
workers than there are cores where these are two. JSON with the benchmark's model is bound by decoding; raw records with
an MLP of 1,024 by 1,024 are bound by computing. With `--joined` it also writes records whose labels come later, which
both workers read, or each those of its own partitions. Counted between two looks at `/status` of
every worker: records that all have learnt, and the CPU of all; the broker runs beside them on the same cores. A worker
is killed and started again some times: from the kill to the chief's next call.
"""

import argparse
import asyncio
import contextlib
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from aiokafka import AIOKafkaProducer
from first_call import free_port, learnt
from rig import CONFIGS, STATE, as_environment, place, report

from millrace.app.tools.local_broker.topics import create_topic

AT_MOST_S = 240.0
BATCH = 4096
WAYS = {"1": (1, BATCH), "2": (2, 2 * BATCH), "2_sharing": (2, BATCH), "3": (3, 3 * BATCH)}
"""Workers, and the rows of a batch."""
SETTLES_S = 4.0
JOINED_PARTITIONS = 4
_CALLED = "failpoint call.settled"
"""What a process prints once, when its first call is settled."""


@dataclass(frozen=True)
class Work:
    """What is learnt."""

    config: str
    topic: str
    settings: Mapping[str, str]


@dataclass
class Worker:
    """One process, and how to start another like it."""

    command: list[str]
    environment: Mapping[str, str]
    core: int
    port: int
    log: Path
    process: subprocess.Popen[bytes]

    def restart(self) -> None:
        """Kill it, and start its successor."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        self.process = start(self.command, self.environment, self.core, self.log)

    def cpu_s(self) -> float:
        """CPU seconds of the process so far."""
        words = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")

    def calls_begun(self) -> int:
        """How many of the processes of this worker have made a call."""
        return self.log.read_text(errors="replace").count(_CALLED)


def start(command: list[str], environment: Mapping[str, str], core: int, log: Path) -> "subprocess.Popen[bytes]":
    """Start a process that runs on one core alone."""
    with log.open("a") as out:
        return subprocess.Popen(
            ["taskset", "-c", str(core), *command], env={**os.environ, **environment}, stdout=out, stderr=out
        )


@contextmanager
def group(bootstrap: str, work: Work, workers: int, batch: int) -> Iterator[list[Worker]]:
    """Run a group; kill it at the end, as nothing of it is needed."""
    addresses = ",".join(f"127.0.0.1:{free_port()}" for _ in range(workers))
    cores = sorted(os.sched_getaffinity(0))
    with ExitStack() as stack:
        running = []
        for index in range(workers):
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=STATE)))
            port = free_port()
            settings = {
                **place(bootstrap, work.topic),
                **work.settings,
                "checkpoints.path": str(folder),
                "api.listen": f"127.0.0.1:{port}",
                "training.batch_size": str(batch),
                "training.threads": "1",
                "scale.workers": str(workers),
            }
            if workers > 1:
                settings |= {"scale.index": str(index), "scale.addresses": addresses}
            environment = {**as_environment(settings), "MILLRACE_FAILPOINTS": "call.settled=sleep:0:once"}
            command = [str(Path(sys.executable).parent / "millrace"), "run", "-c", str(CONFIGS / work.config)]
            core, log = cores[index % len(cores)], folder / "log"
            process = start(command, environment, core, log)
            running.append(Worker(command, environment, core, port, log, process))
        try:
            yield running
        finally:
            for worker in running:
                worker.process.send_signal(signal.SIGKILL)
                worker.process.wait()


def wait_for_calls(workers: list[Worker], count: int) -> None:
    """Wait until the chief has made the first call of its `count`th process."""
    deadline = time.monotonic() + AT_MOST_S
    while workers[0].calls_begun() < count:
        if time.monotonic() > deadline:
            raise SystemExit(f"no call within {AT_MOST_S:g} s:\n{workers[0].log.read_text()[-2000:]}")
        time.sleep(0.02)


def measured(workers: list[Worker], seconds: float) -> dict[str, float]:
    """Count records and CPU of all for so long."""
    wait_for_calls(workers, 1)
    time.sleep(SETTLES_S)

    def look() -> tuple[float, int, float]:
        return time.monotonic(), sum(learnt(w.port) for w in workers), sum(w.cpu_s() for w in workers)

    began, before, spent = look()
    time.sleep(seconds)
    ended, after, spent_then = look()
    records = after - before
    if records <= 0:
        raise SystemExit("nothing was learnt meanwhile; is the topic long enough?")
    return {"records_per_s": records / (ended - began), "records_per_cpu_s": records / (spent_then - spent)}


def write_joined(bootstrap: str, records: int) -> tuple[str, str]:
    """Write records of some minutes ago, and labels of 3 % of them in the same partitions; return both topics."""
    topics = f"joined-{time.time():.0f}", f"joined-{time.time():.0f}-labels"
    for topic in topics:
        create_topic(bootstrap, topic, JOINED_PARTITIONS)
    asyncio.run(_write_joined(bootstrap, topics, records))
    return topics


async def _write_joined(bootstrap: str, topics: tuple[str, str], records: int) -> None:
    began, x = round(time.time() * 1000) - 3_600_000, ",".join(f"{at / 28:.4f}" for at in range(28))
    labels = [at for at in range(records) if at % 33 == 0]
    sent = (
        (topics[0], [(began + at // 10, f'{{"x":[{x}],"id":{at}}}'.encode(), at % 4) for at in range(records)]),
        (topics[1], [(began + at // 10 + 500, f'{{"id":{at},"y":1.0}}'.encode(), at % 4) for at in labels]),
        (topics[1], [(began + records // 10 + 60_000, b'{"id":-1,"y":0.0}', number) for number in range(4)]),
    )
    async with AIOKafkaProducer(bootstrap_servers=bootstrap, max_batch_size=2**19) as producer:
        for topic, log in sent:
            for number in range(JOINED_PARTITIONS):
                batch = producer.create_batch()
                for at, value, place in log:
                    if place == number and batch.append(key=None, value=value, timestamp=at) is None:
                        await (await producer.send_batch(batch, topic, partition=number))
                        batch = producer.create_batch()
                        batch.append(key=None, value=value, timestamp=at)
                if batch.record_count():
                    await (await producer.send_batch(batch, topic, partition=number))


def joined_works(bootstrap: str, records: int) -> dict[str, Work]:
    """Return what learns labels that come later, by who reads them."""
    topic, labels = write_joined(bootstrap, records)
    settings = {
        "records.label": "null",
        "labels.topics": f'["{labels}"]',
        "labels.join": '{"record": "id", "dtype": "int64"}',
        "labels.label": '{"y": {"dtype": "float32", "absent": 0.0}}',
        "labels.within": "10s",
        "labels.early": "1s",
        "labels.on_silence": "absent",
        "training.batches_per_call": "4",
    }
    return {
        "joined": Work("higgs_json.yaml", topic, settings),
        "joined_own": Work("higgs_json.yaml", topic, {**settings, "labels.co_partitioned": "true"}),
    }


def restarts_s(workers: list[Worker], times: int) -> list[float]:
    """Kill a worker so often; the seconds to the chief's next call."""
    took = []
    for _ in range(times):
        time.sleep(SETTLES_S)
        before, began = workers[0].calls_begun(), time.monotonic()
        workers[-1].restart()
        wait_for_calls(workers, before + 1)
        took.append(time.monotonic() - began)
    return took


def main() -> None:
    """Read the options, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--json", required=True, help="a topic of stored JSON records")
    parser.add_argument("--raw", required=True, help="a topic of stored raw records")
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--restarts", type=int, default=3)
    parser.add_argument("--ways", default=",".join(WAYS), help="separated by commas; 1 and 2 are always needed")
    parser.add_argument("--joined", type=int, default=0, help="so many records whose labels come later, too")
    given = parser.parse_args()
    STATE.mkdir(parents=True, exist_ok=True)
    decode = Work("higgs_json.yaml", given.json, {"training.batches_per_call": "4"})
    wide = {"model.args": '{"hidden": 1024}', "training.batches_per_call": "4"}
    compute = Work("higgs_raw.yaml", given.raw, wide)
    details: dict[str, object] = {}
    by_work: dict[str, dict[str, dict[str, float]]] = {}
    restarts: list[float] = []
    ways = given.ways.split(",")
    works = {"decode": decode, "mlp": compute, **(joined_works(given.bootstrap, given.joined) if given.joined else {})}
    for name, work in works.items():
        by_work[name] = {}
        for way in ways:
            workers, batch = WAYS[way]
            with group(given.bootstrap, work, workers, batch) as running:
                by_work[name][way] = found = measured(running, given.seconds)
                if (name, way) == ("decode", "2"):
                    restarts = restarts_s(running, given.restarts)
            details |= {f"{name}_{way}_{key}": round(value) for key, value in found.items()}

    def ratio(name: str, key: str, way: str = "2") -> float:
        return round(by_work[name][way][key] / by_work[name]["1"][key], 3)

    figures = {
        "decode_2_over_1": ratio("decode", "records_per_s"),
        "decode_cpu_kept": ratio("decode", "records_per_cpu_s"),
        "mlp_cpu_kept": ratio("mlp", "records_per_cpu_s"),
        "restart_p50_s": round(statistics.median(restarts), 2),
    }
    keys = {"2_sharing": ("sharing_2_over_1", "sharing_cpu_kept"), "3": ("3_over_1", "3_cpu_kept")}
    for way in (way for way in ways if way in keys):
        by_clock, by_cpu = keys[way]
        for name in by_work:
            details[f"{name}_{by_clock}"] = ratio(name, "records_per_s", way)
            details[f"{name}_{by_cpu}"] = ratio(name, "records_per_cpu_s", way)
    details |= {f"{name}_2_over_1": ratio(name, "records_per_s") for name in by_work if name.startswith("joined")}
    details |= {"mlp_2_over_1": ratio("mlp", "records_per_s"), "restarts_s": restarts}
    report(figures, details)


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        main()
