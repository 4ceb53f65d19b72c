"""`missing: mask` and `absent: mask`: which labels may be masked, and one line for each that may not."""

from collections.abc import Callable
from typing import Any

import pytest
from pydantic import ValidationError

from millrace.app.settings.root import Settings
from tests.app.settings.test_labels import settings

Change = Callable[[dict[str, Any]], object]


def labelled(label: Any, **changed: Any) -> Settings:
    """Return settings whose records hold this label."""

    def change(given: dict[str, Any]) -> None:
        del given["labels"]
        given["records"]["label"] = label
        given.update(changed)

    return settings(change)


TWO = {"watched": {"dtype": "float32", "missing": "mask"}, "liked": "float32"}


def test_a_masked_label_has_a_column_beside_it() -> None:
    found = labelled(TWO)
    assert [field.name for field in found.row_schema.targets] == ["watched", "liked", "watched.present"]
    assert [(field.masked, field.missing) for field in found.row_schema.labels] == [(True, None), (False, None)]
    assert found.model_dump(mode="json")["records"]["label"] == TWO
    assert found.shapers() == ()


def test_records_are_skipped_only_where_each_label_may_be_missing() -> None:
    both = {name: {"dtype": "float32", "missing": "mask"} for name in ("watched", "liked")}
    assert [one.name for one in labelled(both).shapers()] == ["unlabelled"]


def test_a_later_label_is_masked_where_none_came() -> None:
    def change(given: dict[str, Any]) -> None:
        given["labels"]["label"]["seconds"] = {"dtype": "float32", "absent": "mask", "min": 1}

    found = settings(change)
    assert [field.name for field in found.row_schema.targets] == ["clicked", "seconds", "seconds.present"]
    assert found.labels.rules.absent == {"clicked": 0.0, "seconds": 1}


@pytest.mark.parametrize(
    ("label", "complaint"),
    [
        ({"watched": TWO["watched"]}, "mask is for one of several outputs, and this is the only one"),
        (
            {"field": "watched", "missing": "mask"},
            "missing: null sets aside, and records.where leaves out, such a record",
        ),
        ({**TWO, "kind": {"dtype": "bool", "missing": "mask"}}, "a bool cannot be masked"),
        (
            {**TWO, "kind": {"dtype": "string", "missing": "mask"}},
            "a text cannot be masked; list the classes in one_of",
        ),
        ({**TWO, "kind": {"classes": 4, "missing": "mask"}}, "classes number the texts that come"),
        (
            {**TWO, "kind": {"dtype": "int32", "one_of": ["face", "mask"], "missing": "mask"}},
            "mask is one of one_of, and means that the label is missing",
        ),
        ({**TWO, "watched.present": "float32"}, "'watched.present' is the name of a mask"),
    ],
)
def test_what_cannot_be_masked_is_refused_by_name(label: Any, complaint: str) -> None:
    with pytest.raises(ValidationError) as told:
        labelled(label)
    assert complaint in str(told.value)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda one: one["labels"]["label"]["clicked"].update(absent="mask"), "absent: drop skips such a record"),
        (lambda one: one["labels"]["label"]["clicked"].update(missing="mask"), "write absent: mask"),
        (lambda one: one["records"]["features"]["price"].update(missing="mask"), "'mask' does not fit float32"),
    ],
)
def test_what_cannot_be_masked_in_a_join_is_refused_by_name(change: Change, complaint: str) -> None:
    def changed(given: dict[str, Any]) -> None:
        given["records"]["features"] = {"price": {"dtype": "float32"}}
        change(given)

    with pytest.raises(ValidationError) as told:
        settings(changed)
    assert complaint in str(told.value)


def test_a_loss_that_compares_rows_takes_no_mask() -> None:
    training = {"rows": "together", "partial_batches": "wait", "replicas": 1}
    with pytest.raises(ValidationError, match="rows: together compares the rows of a batch, also with those"):
        labelled(TWO, training=training)


def test_a_class_is_masked_by_its_text() -> None:
    label = {**TWO, "kind": {"dtype": "int32", "one_of": ["no", "yes"], "missing": "mask"}}
    kind = labelled(label).row_schema.labels[2]
    assert (kind.masked, kind.one_of, kind.classes) == (True, (0, 1), ("no", "yes"))
    assert kind.as_read.dtype == "string"
