"""`millrace dead-letters redrive`: records go back as they were, and once, however often it is given or killed."""

import asyncio
import gc
import itertools
import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaConnectionError
from typer.testing import CliRunner

from millrace.app.cli.command_list import application
from millrace.consumers.dead_letters import reader, redrive
from millrace.consumers.dead_letters.letter import Absence, DeadLetter
from millrace.consumers.dead_letters.producer import DeadLetterOptions, KafkaDeadLetters
from millrace.consumers.dead_letters.reader import each_letter, newest_letters
from millrace.consumers.dead_letters.redrive import Redrive
from millrace.consumers.errors import MillraceError
from millrace.consumers.kafka.client import KafkaClient
from millrace.consumers.kafka.options import KafkaOptions
from millrace.consumers.reasons import Reason
from millrace.consumers.records import Headers, Partition
from tests.conftest import MakeTopic, WaitFor

pytestmark = pytest.mark.broker

LARGEST = 32 * 1024
FORGED: Headers = (("trace", b"1"), ("millrace.reason", b"forged"), ("millrace.redriven", b"clicks:3:101@7"))
"""A record may bear any header: it is told by ours all the same."""


def letter(offset: int, reason: Reason, value: bytes | None, *, model: str = "clicks", **more: Any) -> DeadLetter:
    facts: dict[str, Any] = {"key": f"key-{offset}".encode(), "headers": (), "timestamp_ms": 7, "field": None} | more
    return DeadLetter(partition=Partition("clicks", 3), offset=offset, value=value, reason=reason, model=model, **facts)


GO = (
    letter(100, Reason.MALFORMED, b"{", headers=FORGED),
    letter(101, Reason.MISSING, b'{"price": null}', key=None),
    letter(102, Reason.EMPTY, None),
    letter(106, Reason.UPDATE_NOT_FINITE, b'{"price": 1e38}'),
)
STAY = (
    GO[1],  # sent twice, as letters may be, and without a key to whichever partition
    letter(103, Reason.STEP_RAISED, None, key=None, absent=Absence.REMOVED),
    letter(107, Reason.STEP_RAISED, None, key=None, timestamp_ms=0),  # of a version that never read the record again
    letter(104, Reason.MISSING, b"{}", model="views"),
    letter(105, Reason.MALFORMED, b"x" * 2 * LARGEST),
)
WHY = {"sent before": 1, "without their record": 2, "of another model": 1, "shortened": 1}


@dataclass(frozen=True)
class Scene:
    """A topic of letters, one to send their records to, and a config that names the first."""

    config: Path
    options: KafkaOptions
    letters: str
    to: str
    wait_for: WaitFor

    def run(self, *arguments: str) -> Mapping[str, Any]:
        command = ["dead-letters", "redrive", "-c", str(self.config), "--to", self.to, "--json", *arguments]
        result = CliRunner().invoke(application, command, catch_exceptions=False)
        assert result.exit_code == 0, result.output
        told: Mapping[str, Any] = json.loads(result.stdout)
        return told

    def _places(self, isolation: Literal["read_committed", "read_uncommitted"]) -> int:
        """How many there are; a commit is answered before its last mark is in the log."""
        return newest_letters(replace(self.options, topics=(self.to,), isolation_level=isolation), 1).total

    def refused(self, *arguments: str) -> MillraceError:
        command = ["dead-letters", "redrive", "-c", str(self.config), "--to", self.to, *arguments]
        error = CliRunner().invoke(application, command).exception
        assert isinstance(error, MillraceError), error
        assert "\n" not in str(error)
        return error

    def arrived(self) -> Counter[tuple[bytes | None, bytes | None, Headers]]:
        """Return what a reader of committed records finds."""
        self.wait_for(lambda: self._places("read_committed") == self._places("read_uncommitted"))
        found = newest_letters(replace(self.options, topics=(self.to,)), 100).newest
        assert all(one.ours["redriven_from"].startswith(f"{self.letters}:") for one in found)
        return Counter((one.key, one.value, one.headers) for one in found)


def records_of(*letters: DeadLetter) -> Counter[tuple[bytes | None, bytes | None, Headers]]:
    own = (tuple(header for header in one.headers if not header[0].startswith("millrace.")) for one in letters)
    return Counter((one.key, one.value, headers) for one, headers in zip(letters, own, strict=True))


@pytest.fixture
def scene(broker: str, topic: MakeTopic, wait_for: WaitFor, tmp_path: Path) -> Scene:
    letters, to = topic(partitions=2), topic()
    options = KafkaOptions(bootstrap_servers=(broker,), topics=(letters,), group_id="g")
    sink = KafkaDeadLetters(options, DeadLetterOptions(topic=letters, max_request_bytes=LARGEST))
    sink.start(30)
    sink.put((*GO, *STAY))
    assert sink.stop(30) == 0
    config = tmp_path / "clicks.yaml"
    config.write_text(
        f"name: clicks\nkafka: {{bootstrap_servers: ['{broker}'], topics: [clicks]}}\n"
        f"records: {{features: {{price: float32}}, dead_letters: {{topic: {letters}}}}}\n"
        "model: {build: ./model.py:build_model}\ncheckpoints: {path: ./checkpoints}\n"
    )
    return Scene(config, options, letters, to, wait_for)


def test_each_record_goes_back_as_it_was_and_once(scene: Scene) -> None:
    would = scene.run("--dry-run")
    assert scene.arrived() == Counter()
    done = scene.run()
    assert done["sent"] == would["sent"] == {"malformed": 1, "missing": 1, "empty": 1, "update_not_finite": 1}
    assert done["stayed"] == would["stayed"] == WHY
    assert scene.arrived() == records_of(*GO)
    assert scene.run()["sent"] == {}
    assert scene.arrived() == records_of(*GO)
    assert scene.run("--again")["sent"] == done["sent"]
    assert scene.arrived() == records_of(*GO, *GO)


def test_records_with_neither_key_nor_value_go_back_among_the_others(scene: Scene) -> None:
    bare = [letter(200 + n, Reason.EMPTY, None, key=None, headers=(("n", b"%d" % n * 200),)) for n in range(80)]
    sink = KafkaDeadLetters(scene.options, DeadLetterOptions(topic=scene.letters, max_request_bytes=LARGEST))
    sink.start(30)
    sink.put(bare)
    assert sink.stop(30) == 0
    would = scene.run("--dry-run")
    done = scene.run()
    assert done["sent"] == would["sent"] == {"malformed": 1, "missing": 1, "empty": 81, "update_not_finite": 1}
    assert done["stayed"] == would["stayed"] == WHY
    assert scene.arrived() == records_of(*GO, *bare)
    assert scene.run()["sent"] == {}


def test_what_was_chosen_goes_first_and_the_rest_later(scene: Scene) -> None:
    first = scene.run("--reason", "missing", "--reason", "empty", "--limit", "1")
    assert first["stayed"]["beyond the limit"] >= 1
    assert scene.arrived().total() == 1
    assert set(scene.run("--reason", "missing", "--reason", "empty")["stayed"]) >= {"for another reason", "sent before"}
    assert scene.arrived() == records_of(*GO[1:3])
    assert scene.run()["sent"] == {"malformed": 1, "update_not_finite": 1}
    assert scene.arrived() == records_of(*GO)


def test_one_that_ends_before_its_transaction_does_is_gone_on_with(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a kill leaves it: all is sent, nothing committed, and nobody there to undo it."""
    monkeypatch.setattr(redrive, "_WINDOW", 1)
    commit, calls = AIOKafkaProducer.commit_transaction, itertools.count()

    async def second_is_lost(producer: AIOKafkaProducer) -> None:
        if next(calls) == 1:
            raise KafkaConnectionError("gone")
        await commit(producer)

    with monkeypatch.context() as dying:
        dying.setattr(AIOKafkaProducer, "commit_transaction", second_is_lost)
        assert "what was sent before stands, and is not sent again" in str(scene.refused())
    assert sum(scene.run()["sent"].values()) == 3
    assert scene.arrived() == records_of(*GO)


def test_of_two_at_once_the_later_one_ends_the_earlier(scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
    wanted = Redrive(letters=scene.letters, to=scene.to, model="clicks")
    found = [one for one in newest_letters(scene.options, 100).newest if one.ours.get("offset") == "100"]

    async def late() -> None:
        earlier = redrive._Transactions(scene.options, wanted)
        await earlier.start()
        try:
            await asyncio.to_thread(redrive.redrive, scene.options, wanted)
            with pytest.raises(MillraceError, match="another redrive of these letters has begun and ended this one"):
                await earlier.send(found, [])
        finally:
            await earlier.stop()

    asyncio.run(late())
    assert scene.arrived() == records_of(*GO)
    gc.collect()  # by then asyncio has logged what nobody awaits
    assert not [one for one in caplog.records if one.name == "asyncio"]


def test_the_list_shows_letters_alone_and_tells_them_by_our_headers(scene: Scene) -> None:
    command = ["dead-letters", "list", "-c", str(scene.config), "--json"]
    before = json.loads(CliRunner().invoke(application, command).stdout)["letters"]
    scene.run()
    after = json.loads(CliRunner().invoke(application, command).stdout)["letters"]
    assert after == before
    assert sorted(one["reason"] for one in after) == sorted(one.reason.value for one in (*GO, *STAY))


def test_what_went_to_one_topic_may_still_go_to_another(scene: Scene, topic: MakeTopic) -> None:
    there = replace(scene, to=topic())
    done = there.run()
    assert scene.run()["sent"] == done["sent"]
    assert scene.arrived() == there.arrived() == records_of(*GO)


def test_a_kafka_that_takes_nothing_more_is_not_waited_for_without_end(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def never(*_given: Any, **_more: Any) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(redrive, "_WINDOW_WITHIN_S", 5.0)
    monkeypatch.setattr(redrive, "_STOP_S", 0.1)
    with monkeypatch.context() as away:
        for method in ("send", "abort_transaction"):
            away.setattr(AIOKafkaProducer, method, never)
        error = scene.refused()
    assert (error.exit_code, "did not take the records in time" in str(error)) == (3, True)
    assert scene.run()["sent"] == {"malformed": 1, "missing": 1, "empty": 1, "update_not_finite": 1}


def test_markers_in_place_of_letters_hide_none_of_the_newest(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redrive, "_WINDOW", 1)
    before = newest_letters(scene.options, 2).newest
    for _ in range(2):
        scene.run("--again")
    assert newest_letters(scene.options, 2).newest == before


def test_a_slow_taker_of_letters_is_not_taken_for_a_silent_kafka(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(reader, "time", SimpleNamespace(monotonic=lambda: clock.now))

    async def take() -> int:
        client, taken = KafkaClient(scene.options), 0
        try:
            await client.connect(10)
            places = client.partitions()
            async for _ in each_letter(client, await client.beginnings(places), await client.ends(places)):
                taken, clock.now = taken + 1, clock.now + 60
        finally:
            await client.close()
        return taken

    assert asyncio.run(take()) == len(GO) + len(STAY)


def test_a_place_to_send_to_that_cannot_be_is_refused_in_a_line(scene: Scene) -> None:
    assert "holds the dead letters themselves" in str(replace(scene, to=scene.letters).refused())
    missing = replace(scene, to="not-there").refused()
    assert (missing.exit_code, "topic not-there is not at" in str(missing)) == (3, True)
    unknown = scene.refused("--reason", "boring")
    assert (unknown.exit_code, "there are malformed, empty, " in str(unknown)) == (2, True)
    assert scene.arrived() == Counter()
