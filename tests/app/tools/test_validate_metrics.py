"""What `millrace validate` says of a model's metrics, on real models. No Kafka is there to ask."""

from collections.abc import Callable
from pathlib import Path

import pytest

from millrace.app.service.model_setup import build_learner
from millrace.app.settings import Settings, load
from millrace.app.tools.validate import CheckOutcome
from millrace.app.tools.validate.model_check import model_checks
from tests.app.checkpoint_history import config_in

pytestmark = pytest.mark.tensorflow
MODEL = """\
import keras


def gini(y_true, y_pred):
    return y_true * y_pred


def build_model():
    price = keras.Input((), name="price")
    hidden = keras.layers.Dense(1)(keras.layers.Reshape((1,))(price))
    model = keras.Model({"price": price}, hidden)
    model.compile(optimizer="sgd", loss="mse", metrics=["mae", gini])
    return model
"""


@pytest.fixture
def settings_of(tmp_path: Path) -> Callable[[str], Settings]:
    """Return a function that loads the settings of a model that is judged by these live metrics."""
    (tmp_path / "model.py").write_text(MODEL)
    return lambda live: load(config_in(tmp_path, f"training: {{batch_size: 8, live_metrics: {live}}}\n"), {}).settings


@pytest.mark.slow
@pytest.mark.parametrize(
    ("live", "outcome", "detail"),
    [
        ("{}", CheckOutcome.OK, "judged by mae: lower is better"),
        ("{watch: gini, better: higher}", CheckOutcome.OK, "judged by gini: higher is better"),
        ("{watch: auc}", CheckOutcome.FAIL, "the model compiles no metric 'auc', but loss, mae, gini"),
        ("{watch: gini}", CheckOutcome.FAIL, "training.live_metrics.better: gini is a metric of your own"),
    ],
)
def test_validate_names_the_metric_that_the_model_is_judged_by(
    settings_of: Callable[[str], Settings], live: str, outcome: CheckOutcome, detail: str
) -> None:
    (check,) = [check for check in model_checks(settings_of(live)) if check.name == "metrics"]
    assert check.outcome is outcome
    assert detail in check.detail


def test_validate_and_a_start_warn_of_a_normalization_that_changes_nothing(
    settings_of: Callable[[str], Settings], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings, told = settings_of("{}"), "layer scaled (Normalization) has no mean and variance, so it changes nothing"
    unscaled = "keras.layers.Reshape((1,))(price)"
    scaled = f"keras.layers.Normalization(name='scaled')({unscaled})"
    (tmp_path / "model.py").write_text(MODEL.replace(unscaled, scaled).replace('["mae", gini]', '["mae"]'))
    checks = [*model_checks(settings)]
    assert CheckOutcome.FAIL not in {check.outcome for check in checks}
    assert [check.outcome for check in checks if told in check.detail] == [CheckOutcome.WARN]
    build_learner(settings)
    assert told in caplog.text
