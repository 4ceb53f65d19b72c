"""What `millrace validate` answers to the mistakes that a model file is likely to have. No Kafka is there to ask."""

from collections.abc import Callable
from pathlib import Path

import pytest

from millrace.app.tools.validate import CheckOutcome, CheckResult
from millrace.app.tools.validate.examination import examine_against
from tests.app.checkpoint_history import config_in

pytestmark = pytest.mark.tensorflow
Complaint = Callable[..., str]
HEAD = """\
import sys

import keras


"""
GOOD = """\
def build_model():
    price = keras.Input((), name="price")
    model = keras.Model({"price": price}, keras.layers.Dense(1)(keras.layers.Reshape((1,))(price)))
    model.compile(optimizer="sgd", loss="mse")
    return model
"""
EXITS = "SystemExit: it calls sys.exit(0), which would end the service; raise an error instead"


@pytest.fixture
def complaint(tmp_path: Path) -> Complaint:
    """Return a function that writes a model file and returns the one complaint about it."""

    def of(text: str, more: str = "") -> str:
        (tmp_path / "model.py").write_text(text)
        checks = [*examine_against(config_in(tmp_path, f"training: {{batch_size: 8}}\n{more}"), None)]
        (failed,) = [check for check in checks if check.outcome is CheckOutcome.FAIL]
        assert failed.exit_code in {2, 4}
        return said(failed).replace(f"{tmp_path}/", "")

    return of


def said(check: CheckResult) -> str:
    assert "\n" not in check.detail
    return check.detail


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("import sys\nsys.exit(0)\n", f"model.build: model.py does not import: {EXITS} (line 2)"),
        (
            HEAD + "def build_model():\n    sys.exit(0)\n",
            f"model.build: build_model raised {EXITS} (line 7)",
        ),
        (
            HEAD + GOOD + "\n\ndef preprocess(features, label, weight):\n    sys.exit(0)\n",
            f"model.build: it does not run on the schema's rows: {EXITS}",
        ),
    ],
)
def test_a_model_that_ends_the_process_is_refused(complaint: Complaint, text: str, line: str) -> None:
    assert complaint(text) == line
