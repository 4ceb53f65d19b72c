"""`millrace produce`: a folder that grows becomes a topic, over a kill, and a model learns its images."""

import asyncio
import json
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import pytest
from aiokafka import AIOKafkaConsumer, TopicPartition

from millrace.app.tools.folder_producer import BATCH_RECORDS, LARGEST_RECORD, SentFiles
from tests.conftest import MakeTopic
from tests.faults.harness.fork_server import ForkedProcess, run_forked
from tests.integration.test_images import PIXELS, images

pytestmark = [pytest.mark.slow, pytest.mark.tensorflow]
ROOT = Path(__file__).parents[2]
CONFIG = """\
name: photos
kafka: {{bootstrap_servers: ['{broker}'], topics: [{topic}]}}
records:
  format: bytes
  features: {{image: {{dtype: uint8, shape: [8, 8, 3], image: bytes, field: $value}}}}
  label: {{bright: {{dtype: int32, one_of: [dark, bright], field: $header.label}}}}
model: {{build: ./model.py:build_model}}
training: {{batch_size: 16}}
checkpoints: {{path: ./checkpoints}}
api: {{listen: '127.0.0.1:0'}}
"""


async def held(broker: str, topic: str) -> list[tuple[bytes | None, bytes, dict[str, bytes]]]:
    """Return what the topic's one partition holds."""
    place, found = TopicPartition(topic, 0), list[tuple[bytes | None, bytes, dict[str, bytes]]]()
    end = await ended(broker, topic)
    async with AIOKafkaConsumer(bootstrap_servers=broker, auto_offset_reset="earliest") as consumer:
        consumer.assign([place])
        while len(found) < end:
            got = (await consumer.getmany(timeout_ms=500)).get(place, [])
            found.extend((one.key, one.value, dict(one.headers)) for one in got)
    return found


async def ended(broker: str, topic: str) -> int:
    """Return how many records the topic's one partition holds."""
    place = TopicPartition(topic, 0)
    async with AIOKafkaConsumer(bootstrap_servers=broker) as consumer:
        return int((await consumer.end_offsets([place]))[place])


def command(config: Path, folder: Path, *more: str) -> list[str]:
    return ["produce", str(folder), "-c", str(config), "--quiet", "0.2", *more]


def produced(typed: list[str], *, code: int = 0) -> "subprocess.CompletedProcess[str]":
    """Run it to its end, which is as expected."""
    done = run_forked(typed, cwd=ROOT, env=os.environ)
    assert done.returncode == code, done.stderr
    return done


def start(typed: list[str], folder: Path) -> ForkedProcess:
    """Start it; what it says is in a file of `folder` for each stream."""
    return ForkedProcess(typed, ROOT, os.environ, (folder / "stdout", folder / "stderr"))


def made_config(tmp_path: Path, broker: str, name: str) -> Path:
    (tmp_path / "model.py").write_text(PIXELS)
    config = tmp_path / "photos.yaml"
    config.write_text(CONFIG.format(broker=broker, topic=name))
    return config


@pytest.mark.timeout(240)
def test_model_learns_each_image_of_a_growing_folder_over_a_kill(tmp_path: Path, broker: str, topic: MakeTopic) -> None:
    name, folder, expected = topic(), tmp_path / "photos", dict[bytes, bytes]()
    config = made_config(tmp_path, broker, name)
    for label in ("dark", "bright"):
        (folder / label).mkdir(parents=True)

    def grow() -> None:
        for number, (image, bright) in enumerate(images(160)):
            place = f"{'bright' if bright == b'1' else 'dark'}/{number:03}.jpg"
            (folder / f"{place}.tmp").write_bytes(image[:20])
            (folder / f"{place}.tmp").write_bytes(image)
            (folder / f"{place}.tmp").rename(folder / place)
            expected[place.encode()] = image
            time.sleep(0.05)

    growing = threading.Thread(target=grow, name="grow")
    growing.start()
    producer = start(command(config, folder, "--follow"), tmp_path)
    try:
        while asyncio.run(ended(broker, name)) < 30:
            assert producer.alive
            time.sleep(0.1)
    finally:
        producer.kill()
    before = asyncio.run(ended(broker, name))
    growing.join(60)
    assert before < len(expected), "the kill came too late to show anything"
    done = produced(command(config, folder, "--json"))
    records = asyncio.run(held(broker, name))
    # What was acknowledged but not noted when the kill came is there twice: what came between two looks.
    assert len(records) == before + json.loads(done.stdout)["records"]
    assert {key: value for key, value, _ in records} == expected
    assert all(headers["label"] == (key or b"").split(b"/")[0] for key, _, headers in records)
    twice = Counter(key for key, _, _ in records)
    assert sum(count - 1 for count in twice.values()) < before / 2
    again = produced(command(config, folder, "--json"))
    assert json.loads(again.stdout)["records"] == 0

    produced(["run", "-c", str(config), "--until", "now"])
    newest = max(tmp_path.glob("checkpoints/photos/checkpoints/*/ledger.json"))
    (partition,) = json.loads(newest.read_text())["partitions"].values()
    assert (partition["learnt"], partition["set_aside"]) == (len(records), {})


def test_each_line_is_a_record_and_each_bad_file_is_counted_once(tmp_path: Path, broker: str, topic: MakeTopic) -> None:
    name, folder = topic(), tmp_path / "lines"
    config = made_config(tmp_path, broker, name)
    folder.mkdir()
    (folder / "a.csv").write_bytes(b"x,y\r\n1,2\r\n\r\n3,4")
    (folder / "b.csv").write_bytes(b"")
    (folder / "c.csv").write_bytes(b"x,y\n5,6\n" + b"7" * (LARGEST_RECORD + 1) + b"\n8,9\n")
    (folder / "d.csv.part").write_bytes(b"x,y\n1,1\n")
    (folder / "e.csv").write_bytes(b"x,y\n" + b"".join(b"%d,0\n" % number for number in range(2500)))
    typed = command(config, folder, "--lines", "--header", "--json")
    done = produced(typed)
    expected = [b"1,2", b"3,4", b"5,6", *(b"%d,0" % number for number in range(2500))]
    answer = {"topic": name, "files": 2, "records": len(expected), "bad": {"empty": 1, "line_too_large": 1}}
    assert json.loads(done.stdout) == answer
    assert "b.csv: empty;" in done.stderr
    assert [value for _, value, _ in asyncio.run(held(broker, name))] == expected
    assert json.loads(produced(typed).stdout)["bad"] == {}


def test_what_is_no_record_is_counted_and_tried_again_where_that_may_help(
    tmp_path: Path, broker: str, topic: MakeTopic
) -> None:
    name, folder = topic(), tmp_path / "photos"
    config = made_config(tmp_path, broker, name)
    (folder / "dark").mkdir(parents=True)
    (folder / "dark" / "large").write_bytes(b"7" * (LARGEST_RECORD + 1))
    (folder / "dark" / "circle").symlink_to("circle")
    (folder / "dark" / "nowhere").symlink_to("gone")
    (folder / "dark" / "good").write_bytes(b"1")
    typed = command(config, folder, "--json")
    done = produced(typed)
    assert json.loads(done.stdout)["bad"] == {"too_large": 1, "unreadable": 1}
    assert "dark/circle: unreadable;" in done.stderr
    (folder / "dark" / "circle").unlink()
    (folder / "dark" / "circle").write_bytes(b"2")
    again = produced(typed)
    assert json.loads(again.stdout)["bad"] == {}
    assert [value for _, value, _ in asyncio.run(held(broker, name))] == [b"1", b"2"]


@pytest.mark.parametrize("changed", [False, True])
def test_a_file_of_lines_goes_on_after_a_kill_unless_it_was_changed(
    tmp_path: Path, broker: str, topic: MakeTopic, *, changed: bool
) -> None:
    name, folder = topic(), tmp_path / "lines"
    config = made_config(tmp_path, broker, name)
    folder.mkdir()
    lines = [b"%d" % number for number in range(150_000)]
    (folder / "long").write_bytes(b"\n".join(lines))
    typed = command(config, folder, "--lines", "--json")
    producer = start(typed, tmp_path)
    try:
        # Once there is something of the second batch, the first is noted.
        while asyncio.run(ended(broker, name)) <= BATCH_RECORDS:
            assert producer.alive
            time.sleep(0.05)
    finally:
        producer.kill()
    sent = asyncio.run(ended(broker, name))
    assert sent < len(lines), "the kill came too late to show anything"
    if changed:
        with (folder / "long").open("ab") as file:
            file.write(b"\n7")
    done = json.loads(produced(typed).stdout)
    values = [value for _, value, _ in asyncio.run(held(broker, name))]
    if changed:
        assert (done["bad"], done["records"], len(values)) == ({"changed": 1}, 0, sent)
    else:
        # The batch that was acknowledged and not noted is there twice, and every line is.
        assert dict.fromkeys(values) == dict.fromkeys(lines)
        assert len(values) == sent + done["records"] <= len(lines) + BATCH_RECORDS


def test_a_second_producer_and_a_full_disk_end_in_a_line_each(tmp_path: Path, broker: str, topic: MakeTopic) -> None:
    name, folder, state = topic(), tmp_path / "many", tmp_path / "sent.sqlite"
    config = made_config(tmp_path, broker, name)
    folder.mkdir()
    for number in range(1500):
        (folder / f"{number:04}-{'x' * 90}").write_bytes(b"%d" % number)
    typed = command(config, folder, "--state", str(state), "--json")
    (first := SentFiles(state)).commit([])
    second = produced(typed, code=2)
    first.close()
    assert "sent.sqlite cannot be used (database is locked); another millrace produce may have it" in second.stderr
    # The limit of a file's size stands for a full disk: SQLite's file ends there.
    limited = (
        "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, 40_000)); "
        "from millrace.app.cli import main; main()"
    )
    full = subprocess.run(
        [sys.executable, "-c", limited, *typed], capture_output=True, text=True, timeout=60, check=False
    )
    assert full.returncode == 2, full.stderr
    assert "make room and start again: the last batch is sent once more" in full.stderr
    assert len(full.stderr.splitlines()) == 1
    produced(typed)
    values = {value for _, value, _ in asyncio.run(held(broker, name))}
    assert values == {b"%d" % number for number in range(1500)}


def test_sigterm_ends_it_with_what_it_has_done(tmp_path: Path, broker: str, topic: MakeTopic) -> None:
    name, folder = topic(), tmp_path / "photos"
    config = made_config(tmp_path, broker, name)
    folder.mkdir()
    (folder / "one").write_bytes(b"1")
    typed = command(config, folder, "--follow", "--json")
    producer = start(typed, tmp_path)
    try:
        while not asyncio.run(ended(broker, name)):
            assert producer.alive
            time.sleep(0.1)
        time.sleep(1)
        producer.terminate()
        assert producer.wait(60)
    finally:
        producer.kill()
    said, errors = ((tmp_path / name).read_text() for name in ("stdout", "stderr"))
    assert producer.exit_code == 0, errors
    assert (json.loads(said)["records"], errors) == (1, "")
