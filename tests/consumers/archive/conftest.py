"""Where the archives of these tests are: what holds of one store has to hold of the other."""

from pathlib import Path

import pytest

from millrace.consumers.archive.archive_store import Place


@pytest.fixture(params=["folder", "s3"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """Give an empty folder, and the URL of one in an object store."""
    found: Place = tmp_path if request.param == "folder" else request.getfixturevalue("bucket")
    return found
