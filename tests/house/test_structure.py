"""The rooms of the house: few arrows between them, all of them down, and names that stand for one thing."""

from collections.abc import Mapping
from pathlib import PurePosixPath

import pytest

from tests.house import structure

MOST_ROOMS: Mapping[str, int] = {"training.model": 10, "pipelines": 10, "pipelines.formats": 14}
MOST_ARROWS: Mapping[str, int] = {
    "app": 30,
    "training": 45,
    "training.model": 25,
    "pipelines": 25,
    "pipelines.formats": 30,
}

EXPLAINED_FOLDERS: Mapping[str, str] = {
    "app/cli": "a file a verb; the tool behind a verb has the verb's name",
    "app/api/routes": "a file for each thing that is served",
    "app/settings/sections": "a file for each section of the config file, and one for the small ones",
}
"""Folders whose files may bear the name of a file elsewhere, each with how the listing explains it."""
FAMILIES: Mapping[str, str] = {"pipelines/formats": "a folder a format: each has its decoder, its framing …"}
"""Folders whose folders are of one kind, so that files with the same name in them do the same for each."""
EXPLAINED_FILES: Mapping[str, str] = {
    "errors": "the errors of its folder",
    "options": "the options of its folder",
    "reference": "writes a page of docs: of the settings, of the metrics",
    "figures": "the figures of its folder",
    "conformance": "what every plugin of its folder keeps",
    "rewind": "the tool, and what it does to a history",
}


@pytest.mark.parametrize("package", structure.HOUSES)
def test_few_arrows_run_between_the_rooms_and_all_run_down(package: str) -> None:
    arrows = structure.arrows(package)
    assert 0 < len(arrows) <= MOST_ARROWS[package], sorted(arrows)
    assert structure.arrows_up(package) == set()


@pytest.mark.parametrize("package", MOST_ROOMS)
def test_a_package_has_few_rooms_and_each_has_its_layer(package: str) -> None:
    rooms = structure.rooms(package)
    assert len(rooms) <= MOST_ROOMS[package], sorted(rooms)
    assert rooms == structure.levels(package).keys()


def test_the_arrows_are_measured_on_real_imports() -> None:
    assert ("cli", "tools") in structure.arrows("app")
    assert ("trainer", "checkpoints") in structure.arrows("training")
    assert ("learner", "call") in structure.arrows("training.model")
    assert ("avro", "shared") in structure.arrows("pipelines.formats")


def test_no_class_name_is_defined_twice() -> None:
    assert structure.class_names_twice() == {}


def test_file_names_are_used_twice_only_where_the_listing_explains_it() -> None:
    """One name stands for one thing, or for the same thing of each member of a family."""
    elsewhere = {
        name: {_kind(folder) for folder in folders if folder not in EXPLAINED_FOLDERS}
        for name, folders in structure.file_names_twice().items()
        if name not in EXPLAINED_FILES
    }
    assert {name: sorted(kinds) for name, kinds in elsewhere.items() if len(kinds) > 1} == {}


def _kind(folder: str) -> str:
    """Return what a folder is one of: its family, or itself."""
    family = str(PurePosixPath(folder).parent)
    return f"{family}/*" if family in FAMILIES else folder
