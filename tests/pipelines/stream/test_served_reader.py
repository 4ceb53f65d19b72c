"""A record of the topic of predictions that cannot be what a server has written is left out."""

import json
from typing import Any, cast

import numpy as np
import pytest

from millrace.pipelines.stream.served_reader import ServedPrediction, ServedReader

WRITTEN: dict[str, Any] = {"name": "m", "row": "00ff", "version": 3, "time": 5000, "prediction": {"p": [0.5]}}


def read(**changed: Any) -> ServedPrediction | None:
    """Return what is read of a record that says something else."""
    return ServedReader(cast("Any", None), "m")._read(json.dumps({**WRITTEN, **changed}).encode())


def test_a_prediction_is_read() -> None:
    found = read()
    assert found is not None
    assert (found.identity, found.version, found.outputs.tolist(), found.at) == (255, 3, [0.5], 5.0)
    assert np.array([found.identity], np.uint64)[0] == 255


@pytest.mark.parametrize(
    "changed",
    [
        {"name": "other"},
        {"row": "-1"},
        {"row": "1" + "0" * 16},
        {"row": "row"},
        {"row": 7},
        {"version": -1},
        {"version": 1 << 63},
        {"version": None},
        {"time": float("nan")},
        {"time": 10**400},
        {"prediction": {"p": [1e39]}},
        {"prediction": {"p": [float("inf")]}},
        {"prediction": {"p": ["text"]}},
        {"prediction": {"p": [0.5], "q": [0.5]}},
        {"prediction": [0.5]},
    ],
    ids=str,
)
def test_what_no_server_has_written_is_left_out(changed: dict[str, Any]) -> None:
    assert read(**changed) is None
