"""Images in folders are records whose label is the folder's name: learnt, counted, judged, and validated on."""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import errno
import json
from pathlib import Path
from typing import Any

import pytest
import typer

from millrace.app.cli.pretrain import EpochLines, RangeOptions, ReadingOptions, source_of
from millrace.app.settings import Loaded, load
from millrace.app.tools.pretrain.inputs import InputOptions, reader_of, training_blocks
from millrace.app.tools.pretrain.shard_sources import ShardSource, from_images, split
from millrace.consumers.errors import ConfigError
from millrace.pipelines.files import image_tree as image_tree_module
from millrace.pipelines.files.image_tree import image_tree
from millrace.pipelines.files.visits import Refusals, Visits
from tests.pipelines.formats.image.image_verdicts import png

pytestmark = pytest.mark.tensorflow
GREY = {"cat": 40, "dog": 120, "owl": 200}
PHOTO = {"dtype": "uint8", "shape": [2, 2, 1], "image": "base64"}
KIND = {"dtype": "int64", "one_of": [*GREY]}


def loaded(folder: Path, features: dict[str, Any], label: Any, **records: Any) -> Loaded:
    config = {
        "name": "photos",
        "kafka": {"bootstrap_servers": ["127.0.0.1:1"], "topics": ["photos"]},
        "records": {"format": "json", "features": features, "label": label, **records},
        "model": {"build": "./model.py:build_model"},
        "training": {"batch_size": 16, "batches_per_call": 2},
        "checkpoints": {"path": "./checkpoints"},
    }
    (folder / "photos.yaml").write_text(json.dumps(config))
    return load(folder / "photos.yaml", {})


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Write a folder for each class, of which one has folders of its own, and things that are no images of a class."""
    root = tmp_path / "photos"
    for kind, grey in GREY.items():
        home = root / kind / "2026" if kind == "owl" else root / kind
        home.mkdir(parents=True)
        for number in range(40):
            (home / f"{number}.png").write_bytes(png([bytes([grey]) * 3] * 3, 3))
        (home / ".DS_Store").touch()
    (root / "cat" / "notes.txt").write_text("none")
    return root


def test_images_are_learnt_with_the_names_of_their_folders(
    tmp_path: Path, photos: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = loaded(tmp_path, {"photo": PHOTO}, {"kind": KIND})
    source = source_of(found, [photos], RangeOptions())
    assert isinstance(source, ShardSource)
    assert source.rows == 121
    training, validation = split(source, None)
    assert validation is not None
    EpochLines(1, quiet=False).dealt(training, validation)
    assert "validating on 13 (10.7 %): chosen by their names" in capsys.readouterr().out
    seen, aside, labels = 0, 0, set[int]()
    for part in (training, validation):
        refusals, visits = Refusals(), Visits(part.shards)
        reader = reader_of(part, found.settings, refusals)
        first = reader.first()
        assert first is not None
        assert len(first)
        for rows in training_blocks(reader, part, found.settings, InputOptions(), None).epoch(0):
            here = rows.offsets.numpy() >= 0
            visits.add(rows.partitions.numpy()[here], rows.offsets.numpy()[here])
            for label, pixels in zip(rows.labels.numpy()[here], rows.features["photo"].numpy()[here], strict=True):
                assert (pixels == [*GREY.values()][label]).all()
                labels.add(int(label))
                seen += 1
        assert visits.ended(refusals.of).all
        aside += refusals.by_reason().get("bad_image", 0)  # type: ignore[call-overload]  # a reason is its text
    assert (seen, aside) == (120, 1)
    assert labels == {0, 1, 2}


@pytest.mark.parametrize(
    ("features", "label", "more", "complaint"),
    [
        ({"photo": PHOTO, "x": "float32"}, {"kind": KIND}, {}, "'x' is another feature: name the image alone"),
        ({"x": "float32"}, {"kind": KIND}, {}, "'x' is another feature"),
        ({"photo": PHOTO}, {"kind": "float32"}, {}, r"a folder's name is: write one_of: \[cat, dog, owl\]"),
        ({"photo": PHOTO}, {"kind": KIND | {"one_of": ["cat", "dog"]}}, {}, "the folder .*/owl is none of its one_of"),
        ({"photo": PHOTO}, {"kind": KIND}, {"weight": {"field": "w"}}, "no other label, and no weight"),
    ],
)
def test_records_that_a_folder_cannot_give_are_refused(
    tmp_path: Path, photos: Path, features: Any, label: Any, more: Any, complaint: str
) -> None:
    settings = loaded(tmp_path, features, label, **more).settings
    with pytest.raises(ConfigError, match=complaint):
        reader_of(from_images(photos), settings, Refusals())


def test_an_image_that_lies_in_no_class_and_a_folder_without_images_are_named(photos: Path, tmp_path: Path) -> None:
    (photos / "1.png").touch()
    with pytest.raises(ConfigError, match=r"photos/1\.png lies in no folder"):
        from_images(photos)
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match="has no folders with images"):
        from_images(tmp_path / "empty")


def test_what_is_no_file_is_named_and_never_read(photos: Path) -> None:
    os.mkfifo(photos / "cat" / "pipe")
    with pytest.raises(ConfigError, match=r"cat/pipe is no file that can be read"):
        image_tree(photos)


def test_skipping_damaged_images_is_answered_with_what_becomes_of_them(tmp_path: Path, photos: Path) -> None:
    found = loaded(tmp_path, {"photo": PHOTO}, {"kind": KIND})
    with pytest.raises(typer.BadParameter, match="is set aside as bad_image"):
        source_of(found, [photos], RangeOptions(), ReadingOptions(skip_damaged=True))


def test_no_folder_is_passed_over_and_none_is_walked_twice(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (photos / "bird").symlink_to(photos / "owl")
    assert sum(name.startswith("bird/2026/") for name in image_tree(photos).names) == 40
    (photos / "owl" / "2026" / "all").symlink_to(photos / "owl")
    with pytest.raises(ConfigError, match=r"2026/all leads back to .*/owl, in which it lies; remove the link"):
        image_tree(photos)
    (photos / "owl" / "2026" / "all").unlink()
    scandir = os.scandir

    def denied(path: Any) -> Any:
        if Path(path).name == "cat":
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", denied)
    with pytest.raises(ConfigError, match=r"photos/cat cannot be read: Permission denied"):
        image_tree(photos)


def test_names_may_be_any_bytes_and_a_file_that_is_too_long_is_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(image_tree_module, "_MOST_BYTES", 3)
    home = tmp_path / os.fsdecode(b"caf\xe9")
    home.mkdir()
    (home / os.fsdecode(b"\xff.png")).write_bytes(b"12345")
    tree = image_tree(tmp_path)
    assert tree.record(0) == (b"123", b"caf\xe9")
    assert len(tree.sha256(0, 1)) == 64
