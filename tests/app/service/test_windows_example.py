"""The example of windows in the docs: a recurrent model that learns its sequences, and of which the proof holds."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

from millrace.app.service.kept_sample import rows_of
from millrace.app.service.model_setup import examine, make_learner, model_file, trace
from millrace.app.settings import Settings, load, to_decoder
from millrace.consumers.records import Chunk, Partition
from millrace.pipelines.stream.decode import Decoded, decode_chunk
from millrace.pipelines.stream.record_sample import sample_of
from millrace.training.model.setup.model_file import load as load_model

pytestmark = [pytest.mark.tensorflow, pytest.mark.slow]
_PAGE = Path(__file__).parents[3] / "docs" / "shaping.md"
_AROUND = """
name: cards
kafka: {bootstrap_servers: [localhost:9092], topics: [payments]}
model: {build: ./model.py:build_model}
training: {batch_size: 16, replicas: 1}
checkpoints: {path: ./checkpoints}
"""


def payments(settings: Settings) -> Decoded:
    """Return some payments, decoded."""
    values = [
        json.dumps({"card": f"card-{at % 7}", "amount": at * 1.5, "merchant": f"shop-{at % 5}", "is_fraud": at % 2})
        for at in range(64)
    ]
    times = np.arange(64, dtype=np.int64)
    chunk = Chunk(
        partition=Partition("payments", 0),
        incarnation=0,
        start=0,
        end=64,
        offsets=times,
        timestamps=times * 1000,
        keys=[None] * 64,
        values=[value.encode() for value in values],
        headers=[()] * 64,
        nbytes=sum(map(len, values)),
        fetched_at=0.0,
    )
    return decode_chunk(chunk, to_decoder(settings.records))


def test_the_example_of_windows_is_a_model_of_which_the_proof_holds(tmp_path: Path) -> None:
    page = _PAGE.read_text()
    sections = re.search(r"```yaml\n(records:.*?)```", page, re.DOTALL)
    code = re.search(r"```python\n(.*?)```", page, re.DOTALL)
    assert sections is not None
    assert code is not None
    (tmp_path / "model.py").write_text(code[1])
    (tmp_path / "millrace.yaml").write_text(_AROUND + sections[1])
    settings = load(tmp_path / "millrace.yaml", {}).settings
    sample = sample_of(rows_of([payments(settings)], settings), 64)
    assert sample is not None
    assert sample.fits(settings.row_schema)
    learner = make_learner(load_model(model_file(settings)), settings, (lambda: sample,))
    assert learner.probes.sample is not None, "the proof is made on records"
    trace(learner, settings)
    assert [finding for finding in examine(learner) if finding.holds is False] == []
