"""The rooms of the house: few arrows between them, all of them down, and names that stand for one thing."""

from collections.abc import Mapping

from tests.house import structure

MOST_APP_ARROWS, MOST_TRAINING_ARROWS = 30, 40

EXPLAINED_FOLDERS: Mapping[str, str] = {
    "app/cli": "a file a verb; the tool behind a verb has the verb's name",
    "app/cli/render": "a file for each thing that is shown",
    "app/api/routes": "a file for each thing that is served",
    "app/settings/sections": "a file for each section of the config file",
}
"""Folders whose files may bear the name of a file elsewhere, each with how the listing explains it."""
EXPLAINED_FILES: Mapping[str, str] = {
    "errors": "the errors of its folder",
    "reference": "writes a page of docs: of the settings, of the metrics",
    "rewind": "the tool, and what it does to a history",
}


def test_few_arrows_run_between_the_rooms_and_all_run_down() -> None:
    figures = structure.figures()
    assert figures["app_arrows"] <= MOST_APP_ARROWS, sorted(structure.arrows("app"))
    assert figures["training_arrows"] <= MOST_TRAINING_ARROWS, sorted(structure.arrows("training"))
    assert structure.arrows_up("app") == set()
    assert structure.arrows_up("training") == set()


def test_the_arrows_are_measured_on_real_imports() -> None:
    assert ("cli", "tools") in structure.arrows("app")
    assert ("trainer", "checkpoints") in structure.arrows("training")


def test_no_class_name_is_defined_twice() -> None:
    assert structure.class_names_twice() == {}


def test_file_names_are_used_twice_only_where_the_listing_explains_it() -> None:
    elsewhere = {
        name: [folder for folder in folders if folder not in EXPLAINED_FOLDERS]
        for name, folders in structure.file_names_twice().items()
        if name not in EXPLAINED_FILES
    }
    assert {name: folders for name, folders in elsewhere.items() if len(folders) > 1} == {}
