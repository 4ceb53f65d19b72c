"""A model is pretrained on files, then learns live from one exact offset; a kill leaves nothing half."""

import json
import os
from pathlib import Path
from random import Random
from subprocess import CompletedProcess

import pytest

from tests.faults.campaigns.exactness import EVERYTHING, Figures, compare_sequences
from tests.faults.conftest import MakeProject, MakeStream
from tests.faults.harness.fork_server import run_forked
from tests.faults.harness.process import Run
from tests.faults.harness.project import Project
from tests.faults.harness.records import ExpectedPosition, good
from tests.faults.harness.shelf import Shelf

pytestmark = [pytest.mark.slow, pytest.mark.broker, pytest.mark.timeout(900), pytest.mark.row(35)]
ROWS, FILES, EPOCHS = 400, 3, 2
SEQUENCES = {name: section for name, section in EVERYTHING.items() if name != "reservoir"}
"""Rows that depend on the records before them, each learnt as often as it is counted."""
PRETRAINED = 3
"""The partition that stands in the records of the files; the topic has partition 0 alone."""


def files(folder: Path) -> list[str]:
    """Write files of Examples with ids of their own; the last one is validated on."""
    from tests.pipelines.files.example_files import example, write

    paths, random = [], Random(5)
    folder.mkdir()
    for number in range(FILES):
        path = folder / f"{number}.tfrecord.gz"
        places = [ExpectedPosition(PRETRAINED, number * ROWS + row) for row in range(ROWS)]
        write(path, [example(good(place, random)) for place in places])
        paths.append(str(path))
    return paths


def pretrain(project: Project, *arguments: str, failpoints: str = "") -> "CompletedProcess[str]":
    command = ["pretrain", "-c", str(project.config), *arguments]
    environment = {**os.environ, "MILLRACE_FAILPOINTS": failpoints}
    return run_forked(command, cwd=project.path, env=environment, timeout=300)


def test_a_pretrained_model_goes_live_at_the_offset_that_its_checkpoint_names(
    stream: MakeStream, project: MakeProject
) -> None:
    topic = stream()
    topic.write(300)
    made = project(topic, kafka={"start": "latest"})
    paths = files(made.path / "files")
    done = pretrain(made, *paths, "--epochs", str(EPOCHS), "--json")
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout[done.stdout.index("{") :])  # the model prints a line of its own
    rows = (FILES - 1) * ROWS
    assert said["positions"] == {f"{topic.name}:0": 300}
    assert [epoch["visited"] for epoch in said["epochs"]] == [
        {"rows": rows, "visited": rows, "twice": 0, "lacking": {}, "damaged": []}
    ] * EPOCHS
    zero = Shelf(made.folder).statement(0)
    ids = sum(range(rows)) * EPOCHS, sum(i * i for i in range(rows)) * EPOCHS
    assert zero.ids[PRETRAINED] == (rows * EPOCHS, *ids), "each row once an epoch, the validation's never"
    assert zero.manifest.provenance["pretrained"]["rows"] == rows
    assert "val_loss" in zero.manifest.provenance["pretrained"]["figures"]

    topic.write(200)
    with Run(made, "--until", "now") as run:
        run.finish()
    last = Shelf(made.folder).newest()
    assert last is not None
    assert last.positions == {0: 500}
    assert last.ids[0] == (200, sum(range(300, 500)), sum(i * i for i in range(300, 500)))
    assert last.ids[PRETRAINED] == zero.ids[PRETRAINED]

    again = pretrain(made, *paths)
    assert again.returncode == 4
    assert "holds" in again.stderr
    assert "checkpoints already" in again.stderr


@pytest.mark.parametrize(
    ("point", "published"),
    [
        # In the gate a pretraining on a range is killed there.
        pytest.param("start.before_zero", False, marks=pytest.mark.nightly),
        ("save.after_manifest", False),
        ("save.after_rename", True),
    ],
)
def test_a_kill_leaves_a_whole_checkpoint_or_none(
    stream: MakeStream, project: MakeProject, point: str, published: bool
) -> None:
    made = project(stream())
    paths = files(made.path / "files")
    done = pretrain(made, *paths, "--position", f"{made.name.removeprefix('m-')}:0=7", failpoints=f"{point}=kill")
    assert done.returncode == -9, done.stderr
    shelf = Shelf(made.folder)
    assert shelf.numbers() == ([0] if published else [])
    if published:
        assert shelf.statement(0).positions == {0: 7}
        return
    assert pretrain(made, *paths).returncode == 0
    assert shelf.statement(0).ids[PRETRAINED][0] == (FILES - 1) * ROWS


def test_a_range_of_the_topic_is_learnt_whole_and_live_goes_on_at_its_end(
    stream: MakeStream, project: MakeProject
) -> None:
    topic = stream(2)
    topic.write(900)
    made = project(topic)
    ends = [len(verdicts) for verdicts in topic.verdicts]
    begin, end = ({number: length * part // 3 for number, length in enumerate(ends)} for part in (1, 2))
    named = [",".join(f"{topic.name}:{number}={at}" for number, at in each.items()) for each in (begin, end)]
    command = ["--from", named[0], "--until", named[1], "--epochs", str(EPOCHS), "--validation", "0", "--json"]
    assert pretrain(made, *command, failpoints="start.before_zero=kill").returncode == -9
    assert (made.folder.root / "range").stat().st_mode & 0o077 == 0, "records are nobody else's to read"
    done = pretrain(made, *command)
    assert done.returncode == 0, done.stderr
    assert not (made.folder.root / "range").exists(), "neither what was read nor what the killed one has left"
    zero = Shelf(made.folder).statement(0)
    assert zero.positions == end
    for number, first in begin.items():
        assert zero.ids[number] == sums(range(first, end[number]), EPOCHS)

    with Run(made, "--until", "now") as run:
        run.finish()
    last = Shelf(made.folder).newest()
    assert last is not None
    assert last.positions == dict(enumerate(ends))
    for number in begin:
        assert last.ids[number] == added(zero.ids[number], sums(range(end[number], ends[number])))


def sums(ids: range, times: int = 1) -> tuple[int, int, int]:
    """Return what the model has counted that learnt these ids so often."""
    return times * len(ids), times * sum(ids), times * sum(i * i for i in ids)


def added(one: tuple[int, int, int], other: tuple[int, int, int]) -> tuple[int, int, int]:
    return one[0] + other[0], one[1] + other[1], one[2] + other[2]


def test_an_archived_topic_is_learnt_live_from_the_exact_end_of_its_archive(
    stream: MakeStream, project: MakeProject
) -> None:
    topic = stream(2)
    made = project(topic, archive={"path": "./archive"})
    for records in (300, 200):
        topic.write(records)
        archived = run_forked(["archive", "-c", str(made.config), "--until", "now"], cwd=made.path, env=os.environ)
        assert archived.returncode == 0, archived.stderr
    topic.write(150)
    done = pretrain(made, "--epochs", str(EPOCHS), "--validation", "0", "--json")
    assert done.returncode == 0, done.stderr
    zero = Shelf(made.folder).statement(0)
    assert zero.positions == {0: 500, 1: 500}
    for number, end in zero.positions.items():
        assert zero.ids[number] == sums(range(end), EPOCHS)

    with Run(made, "--until", "now") as run:
        run.finish()
    last = Shelf(made.folder).newest()
    assert last is not None
    assert last.positions == {0: 650, 1: 650}
    for number, end in last.positions.items():
        assert last.ids[number] == added(zero.ids[number], sums(range(zero.positions[number], end)))


@pytest.mark.parametrize("source", ["archive", pytest.param("range", marks=pytest.mark.nightly)])
def test_sequences_and_records_left_out_go_on_over_the_end_of_a_pretraining(
    stream: MakeStream, project: MakeProject, source: str
) -> None:
    topic = stream(2)
    pretrained = project(topic, archive={"path": "./archive"}, **SEQUENCES)
    alone = project(topic, "alone", **SEQUENCES)
    for _ in range(2):
        topic.write(600)
        if source == "archive":
            command = ["archive", "-c", str(pretrained.config), "--until", "now"]
            archived = run_forked(command, cwd=pretrained.path, env=os.environ)
            assert archived.returncode == 0, archived.stderr
    topic.write(600)
    ends = ",".join(f"{topic.name}:{number}=1200" for number in range(2))
    extent = ["--from", "earliest", "--until", ends] if source == "range" else []
    done = pretrain(pretrained, *extent, "--epochs", str(EPOCHS), "--json")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout[done.stdout.index("{") :])["epochs"]
    assert all(epoch["visited"]["visited"] == epoch["visited"]["rows"] for epoch in told)
    assert all(epoch["left_out"]["balance"] > 0 for epoch in told)
    zero = Shelf(pretrained.folder).statement(0)
    assert zero.positions == {0: 1200, 1: 1200}
    facts = zero.manifest.provenance["pretrained"]
    assert facts["validation_rows"] == 240, "a tenth of 2,400 records"
    assert facts["rows"] == 2160
    found = []
    for made in (pretrained, alone):
        with Run(made, "--until", "now") as run:
            run.finish()
        figures = Figures(seed=0)
        compare_sequences(figures, topic, made)
        assert figures.wrong == 0
        assert figures.sequences > 800
        last = Shelf(made.folder).newest()
        assert last is not None
        assert last.positions == {0: 1800, 1: 1800}
        found.append(next(value for key, value in last.arrays.items() if key.endswith("sequences/table")))
    for number in range(2):
        learnt, expected = (table[number, :1800, 0] for table in found)
        assert (learnt[1200:] == expected[1200:]).all(), "the records that a run from Kafka alone learns"
        once, times = expected[:1200] > 0, learnt[:1200]
        assert (times[~once] == 0).all()
        kept = times[once].tolist()
        assert kept == [EPOCHS] * kept.count(EPOCHS) + [0] * kept.count(0), "but for those that were validated on"
        assert times[1080:].sum() == 0, "the newest tenth of each partition is validated on"
        assert times[:1080].sum() == EPOCHS * once[:1080].sum()
