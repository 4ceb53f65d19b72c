"""Two members of a group on halves of each batch learn what one process learns on the whole."""

import pickle
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from millrace.app.tools.child_process import ROOT, python_environment
from millrace.app.tools.local_broker.broker import free_port
from tests.training.conftest import largest_difference
from tests.training.group import pair

pytestmark = [pytest.mark.slow, pytest.mark.tensorflow, pytest.mark.row(31)]
_WITHIN_S = 400.0
_MOST = 1e-6
_IN_THE_GATE = (
    "Keras' own step",
    "a step of its own, twice, by balanced classes",
    "embeddings by all that Adam offers",
)
"""What the other models have one by one, these have together, or it shows no more of a group than they do."""


@pytest.fixture(scope="module")
def members(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What both members say of the models that are asked for, from processes of their own."""
    asked = [name for name in pair.MODELS if any(item.name.endswith(f"[{name}]") for item in request.session.items)]
    folder: Path = tmp_path_factory.mktemp("pair")
    addresses = ",".join(f"127.0.0.1:{free_port()}" for _ in range(2))
    processes = []
    for index in range(2):
        command = [
            sys.executable,
            "-m",
            "tests.training.group.pair",
            str(index),
            addresses,
            str(folder / str(index)),
            *asked,
        ]
        with (folder / f"{index}.log").open("w") as log:
            processes.append(subprocess.Popen(command, cwd=ROOT, env=python_environment(), stdout=log, stderr=log))
    try:
        codes = [process.wait(_WITHIN_S) for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert codes == [0, 0], (folder / "0.log").read_text()[-3000:] + (folder / "1.log").read_text()[-3000:]
    return [pickle.loads((folder / str(index)).read_bytes()) for index in range(2)]


@pytest.mark.parametrize(
    "name",
    [name if name in _IN_THE_GATE else pytest.param(name, marks=pytest.mark.nightly) for name in pair.MODELS],
)
def test_two_members_learn_what_one_process_learns(name: str, members: list[dict[str, Any]]) -> None:
    one = pair.learnt(name, 0, 1, None)
    first, second = (member["models"][name] for member in members)
    assert largest_difference(first["state"], second["state"]) == 0
    assert largest_difference(one["state"], first["state"]) < _MOST
    np.testing.assert_equal(first["calls"], second["calls"])
    for mine, alone in zip(first["calls"], one["calls"], strict=True):
        assert mine[0] == alone[0]
        np.testing.assert_allclose(mine[1], alone[1], atol=_MOST)
        for state, expected in zip(mine[2], alone[2], strict=True):
            np.testing.assert_allclose(state, expected, atol=1e-3)
    assert Counter(first["culprits"] + second["culprits"]) == Counter(one["culprits"])
    assert one["culprits"]
    seen = np.array(first["seen"], np.int64) + np.array(second["seen"], np.int64)
    assert seen.tolist() == one["seen"]


def test_what_is_exchanged_arrives_whole_whatever_its_size(members: list[dict[str, Any]]) -> None:
    for member in members:
        assert member["gathered"] == [[10, 11], [3000, 3001], [40_000, 40_001]]
        assert member["sent"] == [0.0, 1.0, 2.0, 3.0, 4.0]
        assert member["spread"] == [True] * 3
    sizes = [[0, 0], [0, 10], [pair.LARGE, pair.LARGE - 3]]
    expected = [[(size, (index + 1) * bool(size), True) for index, size in enumerate(both)] for both in sizes]
    assert members[0]["collected"] == expected
    assert members[1]["collected"] == [[]] * 3, "only the chief holds what all remember"


def test_the_proof_in_a_group_holds_for_embeddings_and_refutes_batch_normalization(
    members: list[dict[str, Any]],
) -> None:
    for member in members:
        assert member["refuted"]["embeddings"] == []
        assert any("batch_normalization" in what for what in member["refuted"]["batch normalization"])


def test_collectives_leave_no_threads_behind(members: list[dict[str, Any]]) -> None:
    for member in members:
        before, after = member["threads"]
        assert after < before + 20
