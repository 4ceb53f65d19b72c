"""What `millrace validate` says of passes and their memory, on a real model. No Kafka is there to ask."""

from pathlib import Path

import pytest

from millrace.app.settings import load
from millrace.app.tools.validate import CheckOutcome
from millrace.app.tools.validate.model_check import model_checks
from tests.app.checkpoint_history import config_in
from tests.app.tools.test_validate_metrics import MODEL

pytestmark = pytest.mark.tensorflow


@pytest.mark.slow
@pytest.mark.parametrize(
    ("training", "name", "outcome", "detail"),
    [
        ("passes: 8", "passes", CheckOutcome.WARN, "each batch is learnt 8 times in succession, and on a stream"),
        ("passes: 5, memory: 300", "memory", CheckOutcome.OK, "passes 2 to 5 draw from the last 300 rows, which take"),
        ("passes: 4", None, None, ""),
    ],
)
def test_many_passes_of_the_same_batch_are_warned_of(
    tmp_path: Path, training: str, name: str | None, outcome: CheckOutcome | None, detail: str
) -> None:
    (tmp_path / "model.py").write_text(MODEL)
    settings = load(config_in(tmp_path, f"training: {{batch_size: 8, {training}}}\n"), {}).settings
    found = [check for check in model_checks(settings) if check.name in {"passes", "memory"}]
    assert [(check.name, check.outcome) for check in found] == ([] if name is None else [(name, outcome)])
    assert all(detail in check.detail for check in found)
