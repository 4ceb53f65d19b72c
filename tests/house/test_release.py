"""What keeps a release back, and what does not."""

import io
import shutil
import tarfile
import zipfile
from pathlib import Path

import pytest

from tests.house.release import ROOT, VERSIONED, complaints_about_files, complaints_about_texts, version_of

VERSION = version_of()


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Copy what names the version, with a changelog of this version."""
    for name in VERSIONED:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (shutil.copytree if (ROOT / name).is_dir() else shutil.copy)(ROOT / name, tmp_path / name)
    (tmp_path / "CHANGELOG.md").write_text(f"## [Unreleased]\n\n## [{VERSION}] - 2026-11-27\n\n- It learns.\n")
    return tmp_path


def built(folder: Path, *, wheel: str = VERSION, left_out: str = "", compiled: bool = False) -> list[Path]:
    """Write a wheel for any machine, and an sdist of this version."""
    files = {"millrace/__init__.py": "", "millrace/app/version.py": ""}
    home = f"millrace-{wheel}.dist-info"
    with zipfile.ZipFile(folder / f"millrace-{wheel}-py3-none-any.whl", "w") as made:
        for name, text in {
            **files,
            f"{home}/METADATA": f"Name: millrace\nVersion: {wheel}\n",
            f"{home}/licenses/LICENSE": "",
            **({"millrace/app/some.so": ""} if compiled else {}),
        }.items():
            made.writestr(name, text)
    with tarfile.open(folder / f"millrace-{VERSION}.tar.gz", "w:gz") as packed:
        for name in ("millrace/__init__.py", "app/version.py"):
            if name != left_out:
                packed.addfile(tarfile.TarInfo(f"millrace-{VERSION}/{name}"), io.BytesIO())
    return sorted(folder.iterdir())


def test_this_tree_names_one_version_everywhere(tree: Path) -> None:
    assert list(complaints_about_texts(tree, VERSION)) == []


def test_what_names_another_version_keeps_the_release_back(tree: Path) -> None:
    found = list(complaints_about_texts(tree, "9.9.9"))
    assert found[0].startswith("CHANGELOG.md: no section `## [9.9.9]")
    named = {line.partition(":")[0] for line in found[1:]}
    assert named >= {name for name in VERSIONED if (ROOT / name).is_file()}


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (f"## [Unreleased]\n\n- More.\n\n## [{VERSION}] - 2026-11-27\n\n- It.\n", "still under [Unreleased]"),
        (f"## [Unreleased]\n\n## [{VERSION}] - 2026-11-27\n", "says nothing"),
        ("## [Unreleased]\n", "no section"),
    ],
)
def test_a_changelog_that_is_not_of_this_version_keeps_the_release_back(tree: Path, text: str, complaint: str) -> None:
    (tree / "CHANGELOG.md").write_text(text)
    (found,) = complaints_about_texts(tree, VERSION)
    assert complaint in found


def test_a_wheel_and_an_sdist_that_agree_may_be_published(tmp_path: Path) -> None:
    assert list(complaints_about_files(built(tmp_path), VERSION)) == []


def test_files_that_do_not_agree_keep_the_release_back(tmp_path: Path) -> None:
    assert "is of version 9.9.9" in next(complaints_about_files(built(tmp_path, wheel="9.9.9"), VERSION))
    lacking = tmp_path / "lacking"
    lacking.mkdir()
    assert "lacks 1 files" in next(complaints_about_files(built(lacking, left_out="app/version.py"), VERSION))
    machine = tmp_path / "machine"
    machine.mkdir()
    assert "compiled code" in next(complaints_about_files(built(machine, compiled=True), VERSION))
    assert "run `make dist`" in next(complaints_about_files([], VERSION))
