"""A version that cannot be read is left out of the announcements: named once, and not counted as one that waits."""

from pathlib import Path

import pytest

from millrace.app.service.announcing import Announcing
from millrace.app.settings import load
from millrace.consumers.errors import UnreachableError
from millrace.training.checkpoints.exports.version_folder import FILE_NAME, VersionFolder
from tests.training.checkpoints.exports.test_version_folder import published

CONFIG = """\
name: clicks
kafka:   {bootstrap_servers: ["localhost:1"], topics: [clicks]}
records: {features: {price: float32}, label: {clicked: float32}}
model:   {build: ./model.py:build_model}
checkpoints: {path: ./checkpoints}
export: {path: ./exports, announce: models}
"""


class KeptRecords:
    """Keeps the values that are written, and may be away."""

    def __init__(self) -> None:
        self.values, self.away = list[bytes](), False

    def start(self) -> None:
        """Do nothing."""

    def write(self, key: bytes, value: bytes, within_s: float) -> None:
        """Keep the value, or raise."""
        if self.away:
            raise UnreachableError("the broker is away")
        self.values.append(value)

    def stop(self) -> None:
        """Do nothing."""


@pytest.mark.parametrize("damaged", [b"{", b'{"format": 99}'])
def test_a_version_that_cannot_be_read_is_named_once_and_does_not_wait(
    tmp_path: Path, damaged: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "clicks.yaml").write_text(CONFIG)
    folder, records = VersionFolder(tmp_path / "exports" / "clicks"), KeptRecords()
    announcing = Announcing(load(tmp_path / "clicks.yaml", {}).settings, lambda _: records)
    published(folder, 3, 7, 9)
    manifest = folder.version(7) / FILE_NAME
    whole = manifest.read_bytes()
    manifest.write_bytes(damaged)
    for _ in range(3):
        announcing._announce(records, "models", folder)
        assert (len(records.values), announcing.waiting) == (2, 0)
    assert caplog.text.count("version 7 is left out") == 1

    # Repaired, it waits until it is announced.
    manifest.write_bytes(whole)
    records.away = True
    with pytest.raises(UnreachableError):
        announcing._announce(records, "models", folder)
    assert announcing.waiting == 1
    records.away = False
    announcing._announce(records, "models", folder)
    assert (len(records.values), announcing.waiting) == (3, 0)
