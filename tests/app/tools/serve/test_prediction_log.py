"""`serve.log` without a Kafka: answers never wait for it, and what is not logged is counted by its reason."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from millrace.app.monitoring.metrics.serving_catalogue import SERVING
from millrace.app.settings import load
from millrace.app.tools.serve.json_tensors import DEFAULT, Signature
from millrace.app.tools.serve.predict_requests import PredictRequest
from millrace.app.tools.serve.prediction_log import DROPPED, AnsweredRequest, PredictionLog
from millrace.consumers.errors import ConfigError
from tests.app.tools.serve.exports_rig import CONFIG, publish
from tests.app.tools.serve.memory_rig import HERE, RECORD, published, row, settings
from tests.app.tools.serve.server_rig import serving
from tests.conftest import WaitFor

pytestmark = pytest.mark.tensorflow
LOGGED = {"serve__log__topic": "cards-served", "serve__log__share": "100%"}


def test_requests_are_answered_while_nothing_can_be_logged_and_what_has_no_room_is_counted(tmp_path: Path) -> None:
    published(tmp_path, 1, {HERE: 10})
    with serving(tmp_path, "cards", **LOGGED) as server:
        server.answers_with(1)
        for _ in range(90):
            assert row(server.predict({"records": [RECORD] * 250}))["known"] == 3
        server.wait_for(lambda: server.get("/served")["log"]["problem"] is not None)
        board = server.get("/served")["log"]
        assert (board["topic"], board["share"], board["written"]) == ("cards-served", 1.0, 0)
        assert board["dropped"].keys() == {*DROPPED}
        assert board["dropped"]["full"] >= 250
        assert board["waiting"] > 0
        metrics = server.http.get("/metrics").text
        told = {line.partition("{")[0] for line in metrics.splitlines() if line.startswith("millrace_serve_log_")}
        assert told == {one.name for one in SERVING if one.short.startswith("serve_log_")}
        log = server.server._log
        assert log is not None
    assert sum(log.board().dropped.values()) == 90 * 250, "what was not written when the server ended is counted, too"


def test_features_of_another_config_are_not_logged_and_said_so(tmp_path: Path) -> None:
    class Twice(tf.Module):  # type: ignore[misc] # to mypy TensorFlow's classes are Any
        @tf.function(  # type: ignore[untyped-decorator] # as above
            input_signature=[{"elsewhere": tf.TensorSpec([None], tf.float32, "elsewhere")}]
        )
        def answer(self, raw: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
            return {"y": raw["elsewhere"] * np.float32(2)}

    publish(tmp_path / "exports" / "clicks", 1, Twice(), {"elsewhere": {"dtype": "float32", "shape": []}})
    with serving(tmp_path, "clicks", **LOGGED) as server:
        server.answers_with(1)
        assert server.predict({"instances": [{"elsewhere": 2.0}]}).json() == {"predictions": [4.0]}
        server.wait_for(lambda: server.get("/served")["log"]["dropped"]["unknown"] == 1)


def test_the_topic_of_the_log_holds_nothing_else(tmp_path: Path) -> None:
    others = {"export__announce": "models", "export__path": "exports"}
    for topic in ("cards", "models"):
        with pytest.raises(ConfigError, match=f"serve: log: topic is {topic}, which holds other records"):
            settings(tmp_path, {"serve__log__topic": topic, **others})
    assert settings(tmp_path, {"serve__log__topic": "cards-served"}).serve.log.share == 0.05


def log_of(folder: Path) -> PredictionLog:
    """Return a log for a Kafka that nobody has started."""
    config = folder / "clicks.yaml"
    config.write_text(CONFIG.format(name="clicks"))
    given = {"MILLRACE_SERVE__LOG__TOPIC": "clicks-served", "MILLRACE_SERVE__LOG__SHARE": "100%"}
    return PredictionLog(load(config, {**given, "MILLRACE_KAFKA__BOOTSTRAP_SERVERS": "127.0.0.1:1"}).settings)


def answered(x: Any, **answers: Any) -> AnsweredRequest:
    """Return a request that sent x, and what was answered."""
    signature = Signature(name=DEFAULT, inputs={}, outputs={})
    request = PredictRequest(signature=signature, by_row=False, tensors={"x": x}, rows=len(x))
    return AnsweredRequest(version=1, request=request, answers=answers, positions={}, age_s=None, at=0.0)


@pytest.mark.parametrize("image", [np.zeros((1, 150_000), np.float32), np.array([bytes(600_000)], object)])
def test_what_waits_is_bounded_in_bytes_however_few_rows_it_has(tmp_path: Path, image: Any) -> None:
    log = log_of(tmp_path)
    for _ in range(120):
        log.offer(answered(image, y=np.zeros((1, 1), np.float32)))
    board = log.board()
    assert board.waiting + board.dropped["full"] == 120
    assert 100 < board.waiting <= (64 << 20) // 600_000


def test_an_answer_that_is_not_one_a_row_ends_no_log_and_is_counted(tmp_path: Path, wait_for: WaitFor) -> None:
    log, x = log_of(tmp_path), np.zeros(2, np.float32)
    log.start()
    try:
        log.offer(answered(x, y=x, temperature=np.array(1.0, np.float32)))
        log.offer(answered(x, y=np.zeros(3, np.float32)))
        log.offer(answered(x, y=x))
        wait_for(lambda: log.board().problem is not None)
        assert log.board().dropped == {**dict.fromkeys(DROPPED, 0), "unknown": 4}
        assert log.board().waiting == 2, "the thread writes what came after it, and waits for Kafka"
    finally:
        log.end()
