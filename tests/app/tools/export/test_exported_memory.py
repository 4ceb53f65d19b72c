"""What a version carries of the keys of `windows`: its checkpoint's state, up to a bound, for the same settings."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from millrace.app.settings import Settings, load
from millrace.app.settings.exported_records import write_exported_records
from millrace.app.tools.export.exported_memory import read_exported_memory, window_shaper, write_exported_memory
from millrace.consumers.errors import ConfigError
from millrace.consumers.records import Partition
from millrace.pipelines.shaping.windows.windows import NAME, WindowShaper
from millrace.pipelines.stream.decode import Decoded
from millrace.training.checkpoints.exports.version_folder import ExportMemory
from millrace.training.checkpoints.part_files import VerifiedCheckpoint
from millrace.training.checkpoints.parts import PartState
from millrace.training.ledger.ledger import Skip

CONFIG = """
name: cards
kafka: {{bootstrap_servers: [127.0.0.1:1], topics: [cards]}}
records:
  features: {{card: string, amount: float32}}
  label: {{fraud: float32}}
windows: {{by: card, length: {length}, lengths: known}}
model: {{build: ./model.py:build_model}}
checkpoints: {{path: ./checkpoints}}
export: {{memory: {memory}}}
"""
HERE, OTHER = Partition("cards", 0), Partition("cards", 1)
SKIP = Skip(order="rewind-3", partition=HERE, start=70, end=80, reason="a bad hour")


def settings(folder: Path, length: int = 3, memory: str = "1GiB", further: str = "") -> Settings:
    folder.mkdir(exist_ok=True)
    path = folder / "cards.yaml"
    path.write_text(CONFIG.format(length=length, memory=memory) + further)
    return load(path).settings


def learnt(shaper: WindowShaper, count: int = 60) -> VerifiedCheckpoint:
    """Return a checkpoint that has taken in so many records of each of two partitions."""
    shape = shaper.open(1, {HERE: 0, OTHER: 0}, at_once=True)
    for partition in (HERE, OTHER):
        cards = np.array([f"{partition.number}-{at % 20}".encode() for at in range(count)], object)
        amounts = np.arange(count, dtype=np.float32)
        shape(
            Decoded(
                partition=partition,
                incarnation=1,
                start=0,
                end=count,
                fetched_at=0.0,
                lost=0,
                offsets=np.arange(count),
                event_times=np.arange(count),
                features={"card": cards, "amount": amounts},
                labels={"fraud": amounts},
                weights=None,
                refused=(),
                nbytes=0,
            )
        )
    arrays, facts = shaper.saved()
    parts = {NAME: PartState(arrays=arrays, facts=facts)}
    manifest = SimpleNamespace(positions={str(HERE): count, str(OTHER): count})
    return cast("VerifiedCheckpoint", SimpleNamespace(parts=parts, manifest=manifest))


def carried(given: Settings, version: Path, checkpoint: VerifiedCheckpoint) -> ExportMemory | None:
    version.mkdir()
    write_exported_records(given, version)
    return write_exported_memory(given, checkpoint, [SKIP], version)


def test_a_version_carries_the_state_of_its_checkpoint_and_where_it_holds(tmp_path: Path) -> None:
    given = settings(tmp_path)
    checkpoint = learnt(window_shaper(given))
    made = carried(given, tmp_path / "version", checkpoint)
    assert made is not None
    assert (made.keys, made.left_out) == (40, 0)
    assert made.bytes == sum(path.stat().st_size for path in (tmp_path / "version" / "memory").iterdir())
    found = read_exported_memory(given, tmp_path / "version")
    assert found.positions == {HERE: 60, OTHER: 60}
    assert [(one.partition, one.start, one.end) for one in found.skips] == [(HERE, 70, 80)]
    again = window_shaper(given).saved_of({partition: (60, state) for partition, state in found.states().items()})
    part = checkpoint.parts[NAME]
    assert again[1] == part.facts
    assert {name: array.tolist() for name, array in again[0].items()} == {
        name: np.asarray(array).tolist() for name, array in part.arrays.items()
    }


def test_above_export_memory_the_keys_seen_least_recently_are_left_out_and_counted(tmp_path: Path) -> None:
    given = settings(tmp_path)
    checkpoint = learnt(window_shaper(given))
    whole = carried(given, tmp_path / "whole", checkpoint)
    assert whole is not None
    arrays = (tmp_path / "whole" / "memory" / "windows.safetensors").stat().st_size
    bound = settings(tmp_path, memory=f"{arrays // 2}B")
    made = carried(bound, tmp_path / "version", checkpoint)
    assert made is not None
    assert made.left_out > 0
    assert made.keys + made.left_out == whole.keys
    found = read_exported_memory(bound, tmp_path / "version")
    assert found.left_out == made.left_out
    last = found.states()[HERE].held()[0][-1]
    assert last == b"0-19"
    assert sum(np.asarray(one).nbytes for one in checkpoint.parts[NAME].arrays.values()) > bound.export.memory
    assert carried(settings(tmp_path, memory="0B"), tmp_path / "none", checkpoint) is None


def test_a_checkpoint_from_before_the_windows_gives_empty_sequences_at_its_positions(tmp_path: Path) -> None:
    given = settings(tmp_path)
    checkpoint = learnt(window_shaper(given))
    shorter = settings(tmp_path, length=2)
    made = carried(shorter, tmp_path / "version", checkpoint)
    assert made is not None
    assert made.keys == 0
    found = read_exported_memory(shorter, tmp_path / "version")
    assert (found.positions, found.states()) == ({HERE: 60, OTHER: 60}, {})


def test_a_server_with_another_config_is_told_what_differs(tmp_path: Path) -> None:
    given = settings(tmp_path / "trainer")
    carried(given, tmp_path / "version", learnt(window_shaper(given)))
    assert read_exported_memory(settings(tmp_path / "server"), tmp_path / "version").positions
    for other, said in (
        (settings(tmp_path / "server", further="thinning: {share: 0.5}"), "thinning"),
        (settings(tmp_path / "server", length=4), "windows"),
    ):
        with pytest.raises(ConfigError, match=rf"^serve\.memory: {said} of this config differ"):
            read_exported_memory(other, tmp_path / "version")


def test_a_version_without_keys_and_one_of_a_later_millrace_are_refused(tmp_path: Path) -> None:
    given = settings(tmp_path)
    version = tmp_path / "version"
    version.mkdir()
    with pytest.raises(ConfigError, match=r"carries no keys.*export a checkpoint again"):
        read_exported_memory(given, version)
    carried(given, tmp_path / "other", learnt(window_shaper(given)))
    path = tmp_path / "other" / "memory" / "memory.json"
    body: dict[str, Any] = json.loads(path.read_text())
    path.write_text(json.dumps({**body, "format": 2}))
    with pytest.raises(ConfigError, match="later millrace"):
        read_exported_memory(given, tmp_path / "other")
