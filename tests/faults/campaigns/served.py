"""The campaign of served rows: what a server with a memory makes of a record is what training made of its offset.

    python -m tests.faults.campaigns.served --rows 1000000 --kills 20

prints its figures as JSON, and ends with 1 where a promise is broken. A record is asked for before it is written to the
topic, so its row has to be made of the records before it. Trainer and server are killed in turn, versions are exported
and swapped all the time, and some records are bad. In the end the numbers of the rows that were served are compared
with those that the trainer has added up in its weights.
"""

import argparse
import contextlib
import http.client
import json
import random
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from millrace.app.tools.child_process import python_environment
from millrace.app.tools.local_broker.broker import free_port
from millrace.app.tools.prove.trainer_process import Launch, TrainerProcess, WaitedError, start_python, wait_until
from millrace.consumers.reasons import Reason
from tests.faults.campaigns.kills import broker
from tests.faults.harness import served_model
from tests.faults.harness.process import Run
from tests.faults.harness.project import FEATURES, Project
from tests.faults.harness.records import POISON, ExpectedPosition, Verdict, good
from tests.faults.harness.shelf import Shelf
from tests.faults.harness.topics import Topic

PARTITIONS = 4
_FEWEST_KEYS, _ROWS_A_KEY = 60, 1_000
"""Keys of each partition, of which none is in another one: so many, or one for each so many rows."""
_OTHER_KEYS = 1_000_000
_POISON = (Reason.MALFORMED, Reason.MISSING, Reason.NOT_FINITE, Reason.EMPTY)
_BAD = 0.02
_A_REQUEST = 50
_WITHIN_S = 300.0
_VERSION_S = 60.0
"""How long a newer version is waited for before a kill; on a busy machine none may come."""
_BEGAN_MS = 1_763_694_000_000
_DIED = (OSError, http.client.HTTPException, ValueError)
OnStrike = Callable[[str], None]


@dataclass(slots=True, kw_only=True)
class ServedFigures:
    """The results of a campaign."""

    seed: int
    served_rows: int = 0
    """Rows that a server has made, and that were learnt once."""
    served_rows_wrong: int = 0
    """Of these, those of which a bit is not as in training."""
    not_learnt: int = 0
    """Rows that were served, and not learnt exactly once."""
    served_kills: int = 0
    of_servers: int = 0
    versions: int = 0
    """Versions that have answered."""
    requests: int = 0
    refused: int = 0
    """Answers that were errors while a server was alive and its memory complete."""
    seconds: float = 0.0

    @property
    def kept(self) -> bool:
        """Whether everything held."""
        return self.served_rows > 0 and not (self.served_rows_wrong or self.not_learnt or self.refused)

    def summary(self) -> dict[str, Any]:
        """Return the results for a program, and for people."""
        return {**asdict(self), "seconds": round(self.seconds, 1), "kept": self.kept}


@dataclass(slots=True)
class _Script:
    """Records that were asked for before they are written."""

    keys: int
    """Of each partition."""
    prepared: dict[ExpectedPosition, tuple[bytes | None, Verdict]] = field(default_factory=dict)

    def draw(self, place: ExpectedPosition, _random: random.Random) -> tuple[bytes | None, Verdict]:
        """Return the record that was prepared for this position."""
        return self.prepared.pop(place)


class Server:
    """A real `millrace serve` that is started again whenever it was killed."""

    def __init__(self, project: Project, launch: Launch) -> None:
        self._launch = launch
        self._project, self._port = project, json.loads(project.config.read_text())["serve"]["listen"].split(":")[1]
        self._starts = 0
        self._process = self._started()

    def _started(self) -> TrainerProcess:
        self._starts += 1
        log = self._project.path / f"serve-{self._starts}.log"
        return self._launch(["serve", "-c", str(self._project.config)], self._project.cwd, python_environment(), log)

    def strike(self) -> None:
        """Kill it, and start another one."""
        self._process.kill()
        self._process = self._started()

    def close(self) -> None:
        """Kill it."""
        self._process.kill()

    def ask(self, path: str, body: object = None) -> tuple[int, Mapping[str, str], Any]:
        """Return status, headers and answer; one of _DIED where none comes."""
        connection = http.client.HTTPConnection("127.0.0.1", int(self._port), timeout=60)
        with contextlib.closing(connection):
            connection.request(
                "GET" if body is None else "POST",
                f"/v1/models/{self._project.name}{path}",
                None if body is None else json.dumps(body),
            )
            response = connection.getresponse()
            return response.status, {name.lower(): value for name, value in response.getheaders()}, json.load(response)

    def version(self) -> int:
        """Return the version that answers; -1 where none does."""
        with contextlib.suppress(*_DIED):
            status, _, found = self.ask("/served")
            if status == 200 and found["served"] is not None:
                return int(found["served"])
        return -1

    def holds(self, ends: Sequence[int]) -> bool:
        """Return whether its memory has taken in the topic up to these offsets."""
        with contextlib.suppress(*_DIED):
            status, _, found = self.ask("/served")
            if status == 200 and found["served"] is not None:
                positions = {name.rpartition(":")[2]: at for name, at in found["memory"]["positions"].items()}
                return all(positions.get(str(number), 0) >= end for number, end in enumerate(ends))
        return False


@dataclass(slots=True)
class _Station:
    """The trainer that runs just now."""

    project: Project
    run: Run

    def strike(self) -> None:
        """Kill it, and start another one."""
        self.run.kill()
        self.run = Run(self.project)

    def close(self) -> None:
        """Kill it."""
        self.run.kill()


@dataclass(slots=True)
class _Campaign:
    """What takes part in it."""

    topic: Topic
    script: _Script
    draws: random.Random
    figures: ServedFigures
    station: _Station
    server: Server


def prove_rows(
    bootstrap: str,
    folder: Path,
    *,
    rows: int,
    kills: int,
    seed: int,
    on_strike: OnStrike,
    every: str = "10s",
    launch: Launch = start_python,
) -> ServedFigures:
    """Ask for this many rows while trainer and server are killed this often; compare them with what was learnt."""
    began, figures, draws = time.monotonic(), ServedFigures(seed=seed), random.Random(seed)
    script = _Script(keys=max(_FEWEST_KEYS, rows // _ROWS_A_KEY))
    with ExitStack() as stack:
        topic = stack.enter_context(Topic(bootstrap, f"served-{uuid.uuid4().hex[:8]}", PARTITIONS, script, seed))
        project = Project(
            folder / "run",
            topic,
            records={
                "features": {**FEATURES, "user": "int64", "past": {"dtype": "int64", "field": "id"}},
                "event_time": {"field": "at"},
            },
            # Each save and each export writes the whole table.
            model={
                "build": f"{Path(served_model.__file__)}:build_model",
                "args": {"most": min(rows + _ROWS_A_KEY, served_model.MOST)},
            },
            windows={
                "by": "user",
                "of": ["x", "past"],
                "length": served_model.LENGTH,
                "lengths": "known",
                "gaps": "gaps",
            },
            export={"path": "./exports", "every": every, "keep": 3},
            serve={
                "memory": "follow",
                "listen": f"127.0.0.1:{free_port()}",
                "poll": "500ms",
                "drain": "0s",
            },
        )
        station = _Station(project, Run(project))
        stack.callback(station.close)
        _write(topic, script, [*_prepared(topic, script, draws, 60)])
        station.run.wait_for(lambda: any((project.path / "exports").glob("*/[0-9]*")), "a first version")
        server = Server(project, launch)
        stack.callback(server.close)
        answers = _serve(_Campaign(topic, script, draws, figures, station, server), rows, kills, on_strike)
        wait_until(lambda: station.run.settled() == topic.records, "all is learnt", _WITHIN_S)
        station.run.terminate()
        station.run.finish()
        _compare(figures, project, answers)
    figures.seconds = time.monotonic() - began
    return figures


def _serve(of: _Campaign, rows: int, kills: int, on_strike: OnStrike) -> dict[tuple[int, int], int]:
    """Ask for records, then write them, until there are enough; return the number of each row that was served."""
    topic, draws, figures = of.topic, of.draws, of.figures
    answers, versions = dict[tuple[int, int], int](), set[str]()
    strikes = [rows * (at + 1) // (kills + 1) for at in range(kills)]
    striking: threading.Thread | None = None
    a_round = of.script.keys // 2
    while len(answers) < rows:
        asked = [*_prepared(topic, of.script, draws, a_round)]
        if strikes and len(answers) >= strikes[0]:
            strikes.pop(0)
            if striking is not None:
                striking.join()
            # A newer version answers first, so that the next one goes on from its state.
            newest = of.server.version()
            with contextlib.suppress(WaitedError):
                wait_until(partial(_is_newer, of.server, newest), "a newer version", _VERSION_S)
            of_server = figures.served_kills % 2 == 0
            who = of.server if of_server else of.station
            striking = threading.Thread(target=_strike, args=(who, draws.uniform(0, 0.5)))
            striking.start()
            figures.served_kills += 1
            figures.of_servers += of_server
            on_strike(f"kill {figures.served_kills}: the {'server' if of_server else 'trainer'}, {len(answers)} rows")
        for first in range(0, len(asked), _A_REQUEST):
            some = asked[first : first + _A_REQUEST]
            found, version = _answer(of, some)
            versions.add(version)
            answers |= {(record["partition"], record["id"]): number for record, number in zip(some, found, strict=True)}
        _write(topic, of.script, asked)
    if striking is not None:
        striking.join()
    figures.versions = len(versions)
    return answers


def _is_newer(server: Server, than: int) -> bool:
    return server.version() > than


def _strike(who: Server | _Station, after_s: float) -> None:
    time.sleep(after_s)
    who.strike()


def _answer(of: _Campaign, records: Sequence[Mapping[str, Any]]) -> tuple[list[int], str]:
    """Return the numbers of these rows, and which version says so; ask again where the server was killed meanwhile."""
    server, figures, ends = of.server, of.figures, [len(one) for one in of.topic.verdicts]
    names = ("x", "curse", "id", "partition", "user")
    while True:
        wait_until(lambda: server.holds(ends), "a server whose memory is complete", _WITHIN_S)
        body: dict[str, Any] = {"records": records}
        if of.draws.random() < 0.5:
            rows = [{**{name: one[name] for name in names}, "past": one["id"]} for one in records]
            body = {"instances": rows, "timestamps": [one["at"] for one in records]}
        with contextlib.suppress(*_DIED):
            status, headers, found = server.ask(":predict", body)
            figures.requests += 1
            if status == 200 and float(headers["millrace-memory-age"]) >= 0:
                numbers = [served_model.number_of(one) for one in found["predictions"]]
                return numbers, headers["millrace-version"]
            figures.refused += 1


def _prepared(topic: Topic, script: _Script, draws: random.Random, count: int) -> Iterator[dict[str, Any]]:
    """Prepare the next records of each partition, no two of one key; yield those that can be learnt."""
    for partition in range(PARTITIONS):
        first = len(topic.verdicts[partition])
        for at, user in enumerate(draws.sample(range(script.keys), count)):
            place = ExpectedPosition(partition, first + at)
            if draws.random() < _BAD:
                reason = draws.choice(_POISON)
                script.prepared[place] = POISON[reason](place, draws), reason
                continue
            about = {"user": partition * _OTHER_KEYS + user, "at": _BEGAN_MS + place.offset * 37}
            record: dict[str, Any] = {**good(place, draws), **about}
            script.prepared[place] = json.dumps(record).encode(), None
            yield record


def _write(topic: Topic, script: _Script, asked: Sequence[Mapping[str, Any]]) -> None:
    """Write what was prepared."""
    assert asked
    topic.write(len(script.prepared) // PARTITIONS)


def _compare(figures: ServedFigures, project: Project, answers: Mapping[tuple[int, int], int]) -> None:
    newest = Shelf(project.folder).newest()
    assert newest is not None
    table = next(value for key, value in newest.arrays.items() if key.endswith("numbers/table"))
    for (partition, id_), number in answers.items():
        times, learnt = table[partition, id_].tolist()
        figures.not_learnt += times != 1
        figures.served_rows += times == 1
        figures.served_rows_wrong += times == 1 and learnt % 2**64 != number


def main() -> None:
    """Read the options, kill, print."""
    parser = argparse.ArgumentParser(description="Compare the rows that a server makes with those of training.")
    parser.add_argument("--rows", type=int, default=1_000_000, help="how many are asked for")
    parser.add_argument("--kills", type=int, default=20, help="how often trainer or server is killed")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="draws the kills and the records")
    parser.add_argument("--bootstrap", help="a broker, host:port; without it one is started")
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="millrace-served-") as folder,
        broker(options.bootstrap, Path(folder)) as bootstrap,
    ):
        found = prove_rows(
            bootstrap,
            Path(folder) / "served",
            rows=options.rows,
            kills=options.kills,
            seed=options.seed,
            every="30s",
            on_strike=lambda text: print(text, file=sys.stderr, flush=True),  # noqa: T201 - a command
        )
    print(json.dumps(found.summary(), indent=1))  # noqa: T201 - what the command is for
    sys.exit(int(not found.kept))


if __name__ == "__main__":
    main()
