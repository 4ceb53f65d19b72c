"""The example of windows in the docs: a recurrent model that learns its sequences, and of which the proof holds."""

import re
from pathlib import Path

import pytest

from app.service.model_setup import examine, make_learner, model_file, trace
from app.settings import load
from training.model.model_file import load as load_model

pytestmark = [pytest.mark.tensorflow, pytest.mark.slow]
_PAGE = Path(__file__).parents[3] / "docs" / "shaping.md"
_AROUND = """
name: cards
kafka: {bootstrap_servers: [localhost:9092], topics: [payments]}
model: {build: ./model.py:build_model}
training: {batch_size: 16, replicas: 1}
checkpoints: {path: ./checkpoints}
"""


def test_the_example_of_windows_is_a_model_of_which_the_proof_holds(tmp_path: Path) -> None:
    page = _PAGE.read_text()
    sections = re.search(r"```yaml\n(records:.*?)```", page, re.DOTALL)
    code = re.search(r"```python\n(.*?)```", page, re.DOTALL)
    assert sections is not None
    assert code is not None
    (tmp_path / "model.py").write_text(code[1])
    (tmp_path / "millrace.yaml").write_text(_AROUND + sections[1])
    settings = load(tmp_path / "millrace.yaml", {}).settings
    learner = make_learner(load_model(model_file(settings)), settings)
    trace(learner, settings)
    assert [finding for finding in examine(learner) if finding.holds is False] == []
