"""The folder of exports: whatever has a number there is whole, whenever a process is killed or a disk fails."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from millrace.consumers.failpoints import NAMES, VARIABLE
from millrace.training.checkpoints.exports.version_folder import ExportDraft, ExportProof, ExportSource, VersionFolder
from millrace.training.errors import ExportBusyError, ExportError, MissingExportError, NewerFormatError

ROOT = Path(__file__).parents[4]
PUBLISHING = sorted(
    name for name in NAMES if name.startswith("export.") and name not in {"export.before_save", "export.after_proof"}
)
PUBLISHER = """
import sys
from pathlib import Path
from tests.training.checkpoints.exports.test_version_folder import publish
from millrace.training.checkpoints.exports.version_folder import VersionFolder

folder = VersionFolder(Path(sys.argv[1]))
with folder.writing():
    publish(folder, int(sys.argv[2]))
    folder.prune(2, {int(sys.argv[2])})
"""


def draft_of(number: int) -> ExportDraft:
    return ExportDraft(
        name="clicks",
        number=number,
        made_at="2026-11-23T20:00:00.000+00:00",
        checkpoint=ExportSource(number=number, incarnation=1, parent=number - 1, sha256="ab" * 32),
        positions={"clicks": {"0": 10 * number}},
        records=10 * number,
        metrics={"accuracy": 0.5},
        inputs={"price": {"dtype": "float32", "shape": []}},
        outputs={"clicked": {"dtype": "float32", "shape": [1]}},
        classes={},
        config_sha256="c0",
        model_sha256="f0",
        schema_sha256="d0",
        millrace="0.1.0",
        tensorflow="2.21.0",
        keras="3.15.1",
        proof=ExportProof(rows=256, records="kept", max_difference=0.0, tolerance=1e-6),
    )


def publish(folder: VersionFolder, number: int) -> None:
    """Publish two files, one of them in a folder of its own."""
    written = folder.draft_folder(number)
    (written / "variables").mkdir(parents=True)
    (written / "saved_model.pb").write_bytes(b"graph" * number)
    (written / "variables" / "variables.index").write_bytes(b"weights")
    folder.publish(written, draft_of(number))


@pytest.fixture
def folder(tmp_path: Path) -> VersionFolder:
    return VersionFolder(tmp_path / "exports" / "clicks")


def published(folder: VersionFolder, *numbers: int) -> None:
    with folder.writing():
        for number in numbers:
            publish(folder, number)


def test_a_version_has_its_checkpoints_number_and_a_hash_of_every_file(folder: VersionFolder) -> None:
    published(folder, 9, 10)
    assert folder.numbers() == [9, 10]
    found = folder.manifest(10)
    assert (found.checkpoint.number, found.positions, found.proof.rows) == (10, {"clicks": {"0": 100}}, 256)
    assert {name: facts.size for name, facts in found.files.items()} == {
        "saved_model.pb": 50,
        "variables/variables.index": 7,
    }
    assert folder.problems(10) == []


def test_a_changed_a_lost_and_a_foreign_file_are_found(folder: VersionFolder) -> None:
    published(folder, 1, 2, 3, 4)
    (folder.version(1) / "saved_model.pb").write_bytes(b"grapf")
    (folder.version(2) / "saved_model.pb").unlink()
    (folder.version(3) / "more").touch()
    (folder.version(4) / "millrace.json").write_bytes(b"{}")
    assert folder.problems(1) == ["saved_model.pb is not what was written: its SHA-256 differs"]
    assert folder.problems(2) == ["saved_model.pb is missing"]
    assert folder.problems(3) == ["more is not of the export"]
    assert "is not what was written" in folder.problems(4)[0]


def test_what_a_later_version_wrote_is_refused_as_that(folder: VersionFolder) -> None:
    from millrace.training.checkpoints.sealed_json import seal

    published(folder, 1)
    (folder.version(1) / "millrace.json").write_bytes(seal({**folder.manifest(1).body(), "format": 2}))
    with pytest.raises(NewerFormatError, match="has format 2"):
        folder.manifest(1)


def test_pruning_keeps_the_newest_and_those_that_are_spared(folder: VersionFolder) -> None:
    published(folder, *range(1, 7))
    with folder.writing():
        assert folder.prune(2, {3}) == [1, 2, 4]
    assert folder.numbers() == [3, 5, 6]
    assert folder.leftovers() == []


def test_a_number_that_is_not_there_is_answered_with_those_that_are(folder: VersionFolder) -> None:
    published(folder, 3, 7)
    with pytest.raises(MissingExportError, match=r"there is no export 5 in .*; there are: 3, 7"):
        folder.manifest(5)


def test_two_processes_never_write_to_one_folder(folder: VersionFolder) -> None:
    with folder.writing(), pytest.raises(ExportBusyError), VersionFolder(folder.root).writing(0.1):
        pass


def test_nothing_is_kept_of_an_export_that_fails(folder: VersionFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[Path] = []

    def failing(path: Path) -> None:
        synced.append(path)
        if path == folder.root:
            raise OSError(5, "Input/output error")

    monkeypatch.setattr("millrace.training.checkpoints.exports.version_folder.sync_folder", failing)
    with pytest.raises(ExportError, match="Input/output error; see that"):
        published(folder, 1)
    assert (folder.numbers(), folder.leftovers()) == ([], [])
    assert {path.name for path in synced[:-1]} == {synced[0].name, "variables"}


@pytest.mark.row(40)
@pytest.mark.parametrize("name", PUBLISHING)
def test_a_kill_while_publishing_leaves_no_half_version(folder: VersionFolder, name: str) -> None:
    published(folder, 1, 2)
    environment = {**os.environ, VARIABLE: f"{name}=kill", "PYTHONPATH": str(ROOT)}
    arguments = [sys.executable, "-c", PUBLISHER, str(folder.root), "3"]
    died = subprocess.run(arguments, cwd=ROOT, env=environment, timeout=60, check=False, capture_output=True)
    assert died.returncode == -9
    there = folder.numbers()
    assert there in ([1, 2], [1, 2, 3], [2, 3])
    assert [folder.problems(number) for number in there] == [[]] * len(there)
    with folder.writing():
        assert folder.leftovers() == []
