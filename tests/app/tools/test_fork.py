"""`millrace fork`: a changed model goes on with the weights, the optimizer's state and the positions of another."""

import json
import os
import shutil
import time
from collections.abc import Mapping
from contextlib import chdir
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from millrace.app.cli.command_list import application
from millrace.app.service.checkpoint_policies import save_policy
from millrace.app.service.first_weights import checkpoint_weights, take_initial_weights
from millrace.app.service.model_setup import build_learner, live_metrics_of
from millrace.app.service.provenance import hyperparameter_options, provenance_of
from millrace.app.settings import load
from millrace.app.tools.fork import fork as fork_module
from millrace.app.tools.fork.origin import find_origin
from millrace.consumers.errors import MillraceError
from millrace.consumers.failpoints import NAMES
from millrace.consumers.records import Partition
from millrace.pipelines.stream.blocks import BlockFacts, Span
from millrace.training.checkpoints import CheckpointStore, CheckpointWriter, Folder, FolderLease, SaveReason
from millrace.training.errors import MissingCheckpointError
from millrace.training.ledger.interventions import Interventions, Skip
from millrace.training.ledger.ledger import Ledger
from millrace.training.model.learner import Learner
from millrace.training.trainer.saving import Saving, SavingOptions
from tests.faults.harness.fork_server import run_forked

pytestmark = [
    pytest.mark.tensorflow,
    pytest.mark.row(41),
]
P0 = Partition("clicks", 0)
BATCH, CALLS = 16, 3
END = BATCH * CALLS
MODEL = """\
import keras


def build_model(extra=False, optimizer="adam", units=4, name="hidden"):
    price = keras.Input((2,), name="price")
    hidden = keras.layers.Dense(units, activation="relu", name=name)(price)
    if extra:
        hidden = keras.layers.Dense(units, activation="relu", name="extra")(hidden)
    model = keras.Model({"price": price}, keras.layers.Dense(1, name="score")(hidden))
    model.compile(optimizer=optimizer, loss="mse")
    return model
"""
CONFIG = """\
name: {name}
kafka: {{bootstrap_servers: ["127.0.0.1:1"], topics: [{topic}]{kafka}}}
records: {{features: {{price: {{dtype: float32, shape: [2]}}}}, label: {{y: float32}}}}
model: {{build: "./model.py:build_model", args: {args}}}
training: {{batch_size: 16, threads: 1}}
checkpoints: {{path: ./checkpoints}}
"""


def config(folder: Path, *, name: str = "clicks", topic: str = "clicks", kafka: str = "", **args: Any) -> Path:
    (folder / "model.py").write_text(MODEL)
    path = folder / f"{name}.yaml"
    path.write_text(CONFIG.format(name=name, topic=topic, kafka=kafka, args=json.dumps(args)))
    return path


def begun(path: Path, classes: Mapping[str, list[str]] | None = None) -> tuple[Saving, Learner, Ledger, FolderLease]:
    """Return what saves a model that begins, with these classes if they are given."""
    loaded = load(path)
    settings, states = loaded.settings, loaded.settings.shapers()
    for one in states if classes is not None else ():
        one.load({}, {"labels": classes})
    learner, ledger = build_learner(settings), Ledger()
    lease = FolderLease.acquire(Folder(settings.checkpoints.path / settings.name), "a test")
    store = CheckpointStore(lease.folder, lease)
    options = SavingOptions(
        policy=save_policy(settings),
        provenance=provenance_of(loaded, "a-cluster"),
        hyperparameters=hyperparameter_options(settings),
        clock=time.monotonic,
        shapers=states,
    )
    saving = Saving(store, CheckpointWriter(store), learner, ledger, live_metrics_of(learner, settings), options)
    saving.begin_or_restore(lambda: {P0: 0}, start_over=False)
    return saving, learner, ledger, lease


@pytest.fixture(scope="module")
def learnt(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a model that has learnt three blocks, and has a range to skip ahead of it."""
    folder = tmp_path_factory.mktemp("learnt")
    saving, learner, ledger, lease = begun(config(folder))
    ledger.begin_incarnation()
    learner.witness.lay([P0])
    for call in range(CALLS):
        learner.learn(learner.rows_of(learner.probe(call)))
        span = Span(partition=P0, index=0, start=call * BATCH, end=(call + 1) * BATCH, learnt=BATCH)
        facts = BlockFacts(
            number=call, incarnation=1, spans=(span,), batches=1, rows=BATCH, seed=0, fetched_at=0.0, oldest_ms=0,
            newest_ms=1,
        )  # fmt: skip
        ledger.settle(facts)
        saving.note_settled(facts)
    ledger.follow(Interventions(skips=(Skip(order="rewind-9", partition=P0, start=60, end=70, reason="bad"),)))
    saving.begin(SaveReason.INTERVAL)
    saving.finish()
    lease.release()
    return folder


def fork(folder: Path, origin: str, name: str, *more: str) -> str:
    with chdir(folder):
        result = CliRunner().invoke(application, ["fork", origin, "--as", name, *more], catch_exceptions=False)
    assert result.exit_code == 0
    return result.stdout


def store_of(folder: Path, name: str) -> CheckpointStore:
    return CheckpointStore(Folder(folder / "checkpoints" / name))


def test_a_changed_model_begins_with_what_fits_and_goes_on_at_the_position(learnt: Path) -> None:
    said = fork(learnt, "clicks@1", "deeper", "-c", str(config(learnt, name="deeper", extra=True)))
    assert "deeper@0 is a fork of clicks@1: 4 kept, 2 new\n" in said
    assert "new: extra/kernel, extra/bias" in said
    assert said.splitlines()[-1] == f"start it: millrace run -c {learnt / 'deeper.yaml'}"
    listed = CliRunner().invoke(application, ["checkpoints", "list", "-c", str(learnt / "deeper.yaml")]).stdout
    assert listed.splitlines()[1].endswith("a fork of clicks@1")
    shown = CliRunner().invoke(application, ["checkpoints", "show", "0", "-c", str(learnt / "deeper.yaml")]).stdout
    assert "forked from   clicks@1 (sha256 " in shown
    old, new = store_of(learnt, "clicks").load(1), store_of(learnt, "deeper").load(0)
    for part in ("model", "optimizer"):
        common = [key for key in old[part].arrays if "learning_rate" not in key]
        assert [key for key in common if not np.array_equal(old[part].arrays[key], new[part].arrays[key])] == []
    assert any(np.any(array) for key, array in new["optimizer"].arrays.items() if "momentum" in key and "score" in key)
    assert new["optimizer"].arrays["optimizer/iteration"] == CALLS
    assert (new["progress"].facts["step"], new["witness"]) == (CALLS, old["witness"])
    manifest = store_of(learnt, "deeper").manifest(0)
    assert manifest.positions == {"clicks:0": END}
    origin = manifest.provenance["forked_from"]
    assert (origin["name"], origin["number"], origin["kept"]) == ("clicks", 1, 4)
    ledger = Ledger()
    ledger.restore(new["ledger"])
    assert ledger.learnt() == {P0: END}
    assert [(skip.order, skip.start) for skip in ledger.skips] == [("clicks-rewind-9", 60)]
    assert learnt.joinpath("checkpoints", "clicks", "checkpoints", "0000000001").is_dir()


@pytest.mark.slow
def test_members_begin_with_the_weights_of_one_model_and_the_first_with_its_optimizer(learnt: Path) -> None:
    path = config(learnt, name="mixed")
    members = "threads: 1, passes: 2, members: {recent: 16, since_drift: 64}"
    path.write_text(path.read_text().replace("threads: 1", members))
    fork(learnt, "clicks@1", "mixed", "-c", str(path))
    old, new = store_of(learnt, "clicks").load(1), store_of(learnt, "mixed").load(0)
    for key, array in old["model"].arrays.items():
        np.testing.assert_array_equal(new["model"].arrays[key], array)
        np.testing.assert_array_equal(new["model"].arrays[f"since_drift/{key}"], array)
    for key, array in old["optimizer"].arrays.items():
        np.testing.assert_array_equal(new["optimizer"].arrays[key], array)
        if "learning_rate" not in key:
            other = key.replace(
                "optimizer/", "since_drift_optimizer/since_drift_" if "_" in key else "since_drift_optimizer/"
            )
            assert not new["optimizer"].arrays[other].any()


def test_another_optimizer_begins_anew_under_the_old_config_by_name(learnt: Path) -> None:
    path = config(learnt, optimizer="sgd")
    try:
        facts = json.loads(fork(learnt, "clicks@latest", "plain", "-c", str(path), "--json"))
    finally:
        config(learnt)
    assert (facts["forked_from"]["number"], facts["forked_from"]["optimizer"]["kept"]) == (1, 0)
    assert facts["positions"] == {"clicks:0": END}


def test_a_replay_begins_where_kafka_says_and_never_after_the_position(
    learnt: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = {P0: END + 100, Partition("clicks", 1): 7}
    monkeypatch.setattr(fork_module, "KafkaSource", lambda *_: Kafka(found))
    fork(learnt, "clicks@1", "late", "-c", str(config(learnt, name="late")), "--from", "-7d")
    found[P0] = 5
    fork(learnt, "clicks@1", "again", "-c", str(config(learnt, name="again")), "--from", "earliest")
    assert store_of(learnt, "late").manifest(0).positions == {"clicks:0": END, "clicks:1": 7}
    zero = store_of(learnt, "again").load(0)
    ledger = Ledger()
    ledger.restore(zero["ledger"])
    assert (ledger.positions()[P0], ledger.learnt()[P0]) == (5, 0)
    assert [(skip.order, skip.start, skip.end) for skip in ledger.skips] == [("clicks-rewind-9", 60, 70)]
    assert np.array_equal(
        zero["model"].arrays["score/kernel"], store_of(learnt, "clicks").load(1)["model"].arrays["score/kernel"]
    )


class Kafka:
    """A source that is asked for offsets only."""

    def __init__(self, found: dict[Partition, int]) -> None:
        self._found = found

    def start(self, _within_s: float) -> None: ...

    def stop(self, _within_s: float) -> None: ...

    def resolve_start(self, _start: object) -> dict[Partition, int]:
        return self._found

    def cluster_id(self) -> str:
        return "a-cluster"


REFUSED: list[tuple[str, str, dict[str, Any], str]] = [
    ("clicks@9", "new", {}, "no checkpoint has the number 9"),
    ("gone@latest", "new", {}, "holds no checkpoint of gone"),
    ("clicks", "new", {}, "write NAME@NUMBER"),
    ("new@1", "new", {}, "the name of the model that is forked"),
    ("clicks@1", "new", {"topic": "orders"}, "has learnt from clicks, and this config names orders"),
    ("clicks@1", "new", {"kafka": ", group: millrace-clicks"}, "kafka.group: millrace-clicks is the group of clicks"),
    ("clicks@1", "new", {"name": "hidden_2"}, "describes the model hidden_2"),
    ("clicks@1", "new", {"units": 8}, r"hidden/kernel is \[2, 8\] here and \[2, 4\] there"),
    ("clicks@1", "clicks", {}, "the name of the model that is forked"),
]


@pytest.mark.parametrize(("origin", "name", "changes", "complaint"), REFUSED)
def test_what_cannot_be_forked_is_refused_in_a_line_and_leaves_nothing(
    learnt: Path, origin: str, name: str, changes: dict[str, Any], complaint: str
) -> None:
    path = config(learnt, **{"name": name, **changes})
    result = CliRunner().invoke(application, ["fork", origin, "--as", name, "-c", str(path)])
    config(learnt)
    assert isinstance(result.exception, MillraceError), result.output
    with pytest.raises(MillraceError, match=complaint):
        raise result.exception
    assert "\n" not in str(result.exception)
    assert store_of(learnt, "new").newest() is None


KNOWN = ["cat", "dog", "owl"]


def with_classes(folder: Path, name: str, label: dict[str, Any], rule: str = "") -> Path:
    """Write the config of a model whose classes appear."""
    path = config(folder, name=name)
    text = path.read_text().replace("label: {y: float32}", f"label: {json.dumps(label)}")
    path.write_text(text.replace("shape: [2]}", f"shape: [2]{rule}}}"))
    return path


@pytest.fixture(scope="module")
def numbered(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a model that has numbered three classes."""
    folder = tmp_path_factory.mktemp("numbered")
    saving, _, _, lease = begun(with_classes(folder, "pets", {"field": "kind", "classes": 4}), {"kind": KNOWN})
    saving.finish()
    lease.release()
    return folder


@pytest.mark.parametrize(
    ("name", "label", "rule", "more", "expected"),
    [
        ("on", {"field": "kind", "classes": 4}, "", (), {"kind": KNOWN}),
        ("ruled", {"field": "kind", "classes": 8}, ", min: 0", (), {"kind": KNOWN}),
        ("again", {"field": "kind", "classes": 4}, "", ("--from", "earliest"), {"kind": KNOWN}),
        ("named", {"animal": {"field": "kind", "classes": 4}}, "", (), {"animal": KNOWN}),
        ("others", {"field": "shop", "classes": 4}, "", (), {"shop": []}),
    ],
)
def test_classes_keep_their_numbers_whatever_else_is_new_while_the_label_is_the_same(
    numbered: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    label: dict[str, Any],
    rule: str,
    more: tuple[str, ...],
    expected: dict[str, list[str]],
) -> None:
    monkeypatch.setattr(fork_module, "KafkaSource", lambda *_: Kafka({P0: 0}))
    fork(numbered, "pets@0", name, "-c", str(with_classes(numbered, name, label, rule)), *more)
    assert store_of(numbered, name).load(0)["classes"].facts == {"labels": expected}


@pytest.mark.parametrize(
    ("label", "expected"),
    [
        ({"field": "kind", "classes": 4}, {"kind": KNOWN}),
        ({"animal": {"field": "kind", "classes": 8}}, {"animal": KNOWN}),
        ({"field": "shop", "classes": 4}, {"shop": []}),
    ],
)
def test_initial_weights_bring_the_numbers_of_classes_that_they_were_learnt_for(
    numbered: Path, label: dict[str, Any], expected: dict[str, list[str]]
) -> None:
    path = with_classes(numbered, "copied", label)
    path.write_text(path.read_text().replace("{build:", "{initial_weights: pets@0, build:"))
    settings = load(path).settings
    states, learner = settings.shapers(), build_learner(settings)
    assert take_initial_weights(settings, learner, states)["initial_weights"]["source"] == "pets@0"
    assert [one.saved()[1] for one in states] == [{"labels": expected}]


def test_fewer_classes_than_have_appeared_are_refused(numbered: Path) -> None:
    path = with_classes(numbered, "fewer", {"field": "kind", "classes": 2})
    result = CliRunner().invoke(application, ["fork", "pets@0", "--as", "fewer", "-c", str(path)])
    assert "records.label.classes: 2 for kind, and 3 have appeared in pets@0" in str(result.exception)
    assert store_of(numbered, "fewer").newest() is None


def test_a_checkpoint_that_its_trainer_prunes_meanwhile_is_missing(
    learnt: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(learnt / "checkpoints", tmp_path / "checkpoints")
    settings, store = load(config(tmp_path, name="late")).settings, store_of(tmp_path, "clicks")
    load_verified, load_parts = CheckpointStore.load_verified, CheckpointStore.load

    def verified(self: CheckpointStore, number: int) -> Any:
        found = load_verified(self, number)
        shutil.rmtree(self.folder.checkpoint(number))
        return found

    def loaded(self: CheckpointStore, number: int, only: Any) -> Any:
        found = load_parts(self, number, only=only)
        shutil.rmtree(self.folder.checkpoint(number))
        return found

    monkeypatch.setattr(CheckpointStore, "load_verified", verified)
    monkeypatch.setattr(CheckpointStore, "load", loaded)
    with pytest.raises(MissingCheckpointError, match="clicks@1 was pruned while it was read"):
        find_origin(settings, "clicks", 1)
    with pytest.raises(MissingCheckpointError, match="clicks@0 was pruned while it was read"):
        checkpoint_weights(store, 0, "clicks@0")


def test_a_name_that_has_checkpoints_is_not_forked_onto(learnt: Path) -> None:
    path = config(learnt, name="taken")
    fork(learnt, "clicks@1", "taken", "-c", str(path))
    before = store_of(learnt, "taken").manifest(0)
    result = CliRunner().invoke(application, ["fork", "clicks@0", "--as", "taken", "-c", str(path)])
    assert getattr(result.exception, "exit_code", None) == 4
    assert store_of(learnt, "taken").manifest(0) == before


POINTS = [name for name in NAMES if name.startswith(("term.", "start.", "save.")) and not name.endswith("_prune")]
BETWEEN = {"term.before_record", "save.before_data", "save.after_data", "save.after_manifest"}
"""In the gate `test_crashes` of the checkpoints kills a trainer there; a fork is killed at the points beside them."""


@pytest.mark.slow
@pytest.mark.parametrize(
    "point", [pytest.param(point, marks=pytest.mark.nightly) if point in BETWEEN else point for point in POINTS]
)
def test_a_fork_that_is_killed_leaves_nothing_or_a_whole_one(learnt: Path, point: str) -> None:
    name = point.replace(".", "-").replace("_", "-")
    command = ["fork", "clicks@1", "--as", name, "-c", str(config(learnt, name=name))]
    killed = run_forked(command, cwd=learnt, env={**os.environ, "MILLRACE_FAILPOINTS": f"{point}=kill"}, timeout=120)
    assert f"failpoint {point}: kill" in killed.stderr
    whole = point in {"save.after_rename", "start.after_zero"}
    newest = store_of(learnt, name).newest()
    assert (newest is not None) == whole
    again = run_forked(command, cwd=learnt, env=os.environ, timeout=120)
    assert again.returncode == (4 if whole else 0), again.stderr
    zero = store_of(learnt, name).newest()
    assert zero is not None
    assert (zero.number, zero.positions) == (0, {"clicks:0": END})
    assert store_of(learnt, "clicks").verify(1).verified
