"""Which starts without a checkpoint belong to a name that has learnt before."""

from collections.abc import Mapping
from typing import Any, cast

import pytest

from millrace.app.service.lost_history import lost_history
from millrace.app.settings import Settings
from millrace.consumers.errors import DataLossError
from millrace.consumers.records import Partition
from tests.app.conftest import LoadText

P0, P1 = Partition("clicks", 0), Partition("clicks", 1)


class Group:
    """A source whose group has committed these offsets."""

    def __init__(self, committed: Mapping[Partition, int]) -> None:
        self._committed = dict(committed)

    def committed(self) -> dict[Partition, int]:
        return self._committed


def found(settings: Settings, committed: Mapping[Partition, int], start: Mapping[Partition, int]) -> str | None:
    lost = lost_history(cast("Any", Group(committed)), settings, start)
    return None if lost is None else str(lost)


@pytest.mark.parametrize(
    ("start", "committed", "first", "again"),
    [
        ("earliest", {P0: 900, P1: 40}, {P0: 100, P1: 40}, ": 800 offsets are learnt once more"),
        ("earliest", {P0: 900}, {P0: 100, P1: 0}, ": 800 offsets are learnt once more"),
        ("latest", {P0: 900}, {P0: 900}, "begins with new weights"),
        ("-7d", {P0: 50}, {P0: 100}, "begins with new weights"),
    ],
)
def test_commits_beyond_the_start_show_that_the_name_has_learnt_before(
    load_text: LoadText, start: str, committed: dict[Partition, int], first: dict[Partition, int], again: str
) -> None:
    told = found(load_text(MILLRACE_KAFKA__START=start).settings, committed, first)
    assert told is not None
    assert "holds no checkpoint, yet the group millrace-clicks has committed offsets" in told
    assert told.endswith(again)


@pytest.mark.parametrize(
    ("start", "committed"),
    [("earliest", {}), ("earliest", {P0: 100}), ("latest", {}), ("committed", {P0: 900})],
)
def test_a_name_that_has_learnt_nothing_begins_without_a_word(
    load_text: LoadText, start: str, committed: dict[Partition, int]
) -> None:
    settings = load_text(MILLRACE_KAFKA__START=start, MILLRACE_CHECKPOINTS__ON_MISSING="fail").settings
    assert found(settings, committed, {P0: 100}) is None


def test_by_choice_such_a_start_is_refused_with_both_ways_out(load_text: LoadText) -> None:
    settings = load_text(MILLRACE_CHECKPOINTS__ON_MISSING="fail").settings
    with pytest.raises(DataLossError, match="mount its volume or bring the folder back") as caught:
        found(settings, {P0: 900}, {P0: 100})
    assert "`millrace run -c CONFIG --start-over`" in str(caught.value)
