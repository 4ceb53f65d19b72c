"""Markers of what is served: they hold for an hour, by server, and nothing odd in their folder is in the way."""

from pathlib import Path

import pytest

from millrace.training.checkpoints.exports.served_markers import KEPT_S, mark_served, served_versions

NOW = 1_700_000_000.0


def test_what_any_server_serves_is_marked_and_replaced_by_what_it_serves_next(tmp_path: Path) -> None:
    mark_served(tmp_path, "pod-a-8501", [7, 9], NOW)
    mark_served(tmp_path, "pod-b-8501", [8], NOW)
    assert served_versions(tmp_path, NOW) == {7, 8, 9}
    mark_served(tmp_path, "pod-a-8501", [9], NOW)
    assert served_versions(tmp_path, NOW) == {8, 9}


def test_a_marker_that_is_not_renewed_ends_and_is_removed_later(tmp_path: Path) -> None:
    mark_served(tmp_path, "gone", [7], NOW)
    assert served_versions(tmp_path, NOW + KEPT_S - 1) == {7}
    assert served_versions(tmp_path, NOW + KEPT_S + 1) == set()
    mark_served(tmp_path, "alive", [8], NOW + 2 * KEPT_S + 1)
    assert [path.name for path in (tmp_path / "served").iterdir()] == ["alive.json"]


@pytest.mark.parametrize("text", ["", "[]", "{", '{"versions": "7", "until": 9e99}', '{"versions": [true, 1.5]}'])
def test_what_is_no_marker_keeps_nothing_and_is_left_alone(text: str, tmp_path: Path) -> None:
    (tmp_path / "served").mkdir()
    (tmp_path / "served" / "odd.json").write_text(text)
    mark_served(tmp_path, "alive", [8], NOW)
    assert served_versions(tmp_path, NOW) == {8}


def test_a_folder_without_markers_has_none_and_a_server_has_a_plain_name(tmp_path: Path) -> None:
    assert served_versions(tmp_path / "nowhere") == set()
    with pytest.raises(ValueError, match="no name of a server"):
        mark_served(tmp_path, "../outside", [1])
