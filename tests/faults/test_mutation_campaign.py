"""Damage in one random way is never accepted, and nothing sound is ever rejected; by seed."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from millrace.consumers.durable_files import FileFacts
from millrace.training.checkpoints import inspection, manifest, part_files
from millrace.training.checkpoints.files import read_verified
from millrace.training.checkpoints.part_files import decode
from millrace.training.errors import CorruptError
from tests.faults.campaigns.mutations import campaign

COUNT, SEED = 60, 20_261_121


def test_a_campaign_accepts_nothing_corrupt_and_rejects_nothing_valid() -> None:
    figures = campaign(COUNT, SEED)
    assert (figures.mutations, figures.corrupt_accepted, figures.accepted) == (COUNT, 0, ())
    assert (figures.valid, figures.valid_rejected) == (COUNT, 0)
    assert len(figures.kinds) == 8, f"a kind of damage was never done: {figures.kinds}"


def test_a_campaign_is_the_same_for_the_same_seed() -> None:
    one, same, other = campaign(10, 1), campaign(10, 1), campaign(10, 2)
    assert one == same
    assert one.kinds != other.kinds


def _unhashed(path: Path, _expected: FileFacts) -> bytes:
    """Return whatever can be read."""
    raw = path.read_bytes()
    try:
        json.loads(raw) if path.suffix == ".json" else decode(raw)
    except Exception as error:
        raise CorruptError(str(error)) from error
    return raw


def _unsealed(raw: bytes) -> Any:
    return {key: value for key, value in json.loads(raw).items() if key != "sha256"}


Gap = list[tuple[Any, str, Callable[..., Any]]]
GAPS: dict[str, Gap] = {
    "loads without hashing": [(part_files, "read_verified", _unhashed)],
    "verifies without hashing": [(inspection, "complaint", lambda *_, **__: None)],
    "does not look at the seal": [(manifest, "unseal", _unsealed), (manifest, "spelt_as_sealed", lambda _raw: True)],
}


@pytest.mark.parametrize("gap", GAPS.values(), ids=GAPS)
def test_a_store_with_a_gap_is_found_out(monkeypatch: pytest.MonkeyPatch, gap: Gap) -> None:
    for module, name, function in gap:
        monkeypatch.setattr(module, name, function)
    assert campaign(COUNT, SEED).corrupt_accepted > 0


def test_a_store_that_rejects_what_is_sound_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def strict(path: Path, expected: FileFacts) -> bytes:
        if expected.size % 3 == 0:
            raise CorruptError("it looks odd")
        return read_verified(path, expected)

    monkeypatch.setattr(part_files, "read_verified", strict)
    assert 0 < campaign(COUNT, SEED).valid_rejected < COUNT
