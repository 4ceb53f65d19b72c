"""What the settings have the inputs watch."""

from millrace.app.service.watchers import inputs_of
from tests.app.conftest import LoadText


def test_features_labels_and_fields_that_only_slices_are_made_of_are_watched(load_text: LoadText) -> None:
    plain = [field.name for field in inputs_of(load_text().settings).fields]
    sliced = inputs_of(load_text(MILLRACE_RECORDS__SLICES='["country"]').settings)
    assert plain
    assert [field.name for field in sliced.fields] == [*plain, "country"]
    assert sliced.fields[-1].text
