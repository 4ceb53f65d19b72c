"""TF Serving's documented requests, verbatim, and what its clients send besides: answered as it answers them."""

import json
from collections.abc import Iterator

import pytest

from tests.app.tools.serve.exports_rig import CLICKS, Clicks, HalfPlus, lay_down, publish
from tests.app.tools.serve.server_rig import Server, serving

pytestmark = pytest.mark.tensorflow
ROW = {"price": [1.0, 2.5], "ad": "a", "hour": 3, "tags": ["x", "y"], "place": "side"}


@pytest.fixture(scope="module")
def half_plus_three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Serve the example of TF Serving's documentation, which has no manifest of ours."""
    folder = tmp_path_factory.mktemp("half")
    lay_down(folder / "exports" / "half_plus_three" / "123", HalfPlus(3.0))
    with serving(folder, "half_plus_three") as server:
        server.answers_with(123)
        yield server


@pytest.fixture(scope="module")
def clicks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Serve a model with all kinds of features."""
    folder = tmp_path_factory.mktemp("clicks")
    publish(folder / "exports" / "clicks", 7, Clicks(), CLICKS)
    with serving(folder, "clicks") as server:
        server.answers_with(7)
        yield server


def test_the_documented_status_request_is_answered_as_documented(half_plus_three: Server) -> None:
    documented = """{
 "model_version_status": [
  {
   "version": "123",
   "state": "AVAILABLE",
   "status": {
    "error_code": "OK",
    "error_message": ""
   }
  }
 ]
}"""
    for path in ("", "/versions/123"):
        assert half_plus_three.http.get(f"/v1/models/half_plus_three{path}").text.strip() == documented


def test_the_documented_predict_request_is_answered_as_documented(half_plus_three: Server) -> None:
    for path in ("", "/versions/123"):
        answer = half_plus_three.predict('{"instances": [1.0,2.0,5.0]}', path)
        assert (answer.status_code, answer.json()) == (200, {"predictions": [3.5, 4.0, 5.5]})
        assert answer.headers["content-type"] == "application/json"
        assert answer.headers["millrace-version"] == "123"


def test_the_documented_error_is_answered_as_documented(half_plus_three: Server) -> None:
    answer = half_plus_three.http.post("/v1/models/half:predict", content='{"instances": [1.0,5.0]}')
    assert (answer.status_code, answer.json()) == (404, {"error": "Servable not found for request: Latest(half)"})


def test_metadata_has_the_signature_as_tf_serving_shows_it(half_plus_three: Server) -> None:
    found = half_plus_three.get("/metadata")
    assert found["model_spec"] == {"name": "half_plus_three", "signature_name": "", "version": "123"}
    shown = found["metadata"]["signature_def"]["signature_def"]["serving_default"]
    assert shown["method_name"] == "tensorflow/serving/predict"
    assert shown["inputs"]["x"] == {
        "dtype": "DT_FLOAT",
        "tensor_shape": {"dim": [{"size": "-1", "name": ""}], "unknown_rank": False},
        "name": "serving_default_x:0",
    }


@pytest.mark.parametrize(
    ("body", "answer"),
    [
        ('{"signature_name": "serving_default", "instances": [{"x": 1.0}]}', {"predictions": [3.5]}),
        ('{"inputs": [1.0, 2]}', {"outputs": [3.5, 4.0]}),
        ('{"inputs": {"x": [0.4]}}', {"outputs": [3.2]}),
        ('{"instances": [Infinity, -Infinity]}', {"predictions": [float("inf"), float("-inf")]}),
    ],
)
def test_each_format_is_answered_in_its_own(body: str, answer: object, half_plus_three: Server) -> None:
    assert half_plus_three.predict(body).json() == answer


def test_not_a_number_is_a_number_in_both_directions(half_plus_three: Server) -> None:
    assert half_plus_three.predict('{"instances": [NaN]}').text == '{"predictions": [NaN]}'


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("", "JSON Parse error"),
        ("[" * 100_000, "nested too deeply"),
        ("[1]", "the request is no object"),
        ("{}", "Missing 'inputs' or 'instances' key"),
        ('{"instances": [1.0], "inputs": [1.0]}', "send one of them"),
        ('{"instances": []}', "No values in 'instances'"),
        ('{"instances": 1.0}', "Expecting 'instances' to be a list"),
        ('{"instances": [1.0, "a"]}', "instances[1] is a text, and the model takes float32"),
        ('{"instances": [true]}', "instances[0] is true, and the model takes float32"),
        ('{"instances": [null]}', "instances[0] is null"),
        ('{"instances": [1e39]}', "instances[0] is too large or too small for float32"),
        ('{"instances": [[1.0], [1.0, 2.0]]}', "instances[1] is a list of 2, and its neighbours are lists of 1"),
        ('{"instances": [[1.0]]}', "has the shape [1, 1], and the model takes float32 of shape [?]"),
        ('{"instances": [{"y": 1.0}]}', "instances[0]: the feature 'x' is missing"),
        ('{"signature_name": "foo", "instances": [1.0]}', 'Serving signature name: "foo" not found in signature def'),
    ],
)
def test_a_bad_request_says_where_it_is_wrong(body: str, said: str, half_plus_three: Server) -> None:
    assert said in half_plus_three.refused(body)


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("POST", "/v1/models/half_plus_three", 400),
        ("POST", "/v1/models/half_plus_three:foo", 400),
        ("POST", "/v1/models/half_plus_three:regress", 400),
        ("POST", "/v1/models/half_plus_three/labels/stable:predict", 410),
        ("GET", "/v1/models/half_plus_three/labels/canary", 410),
        ("POST", "/v1/models/half_plus_three:pin", 410),
        ("POST", "/v1/models/half_plus_three:follow", 410),
        ("POST", "/v1/models/half_plus_three/versions/foo:predict", 400),
        ("POST", "/v1/models/half_plus_three/versions/7:predict", 404),
        ("GET", "/v1/models/half_plus_three/versions/7", 404),
        ("GET", "/nothing", 404),
    ],
)
def test_other_paths_are_refused_in_tf_servings_form(
    method: str, path: str, status: int, half_plus_three: Server
) -> None:
    answer = half_plus_three.http.request(method, path, content="{}")
    assert (answer.status_code, list(answer.json())) == (status, ["error"])


def test_rows_of_all_kinds_of_features_are_answered(clicks: Server) -> None:
    other = {**ROW, "tags": [], "hour": 4, "place": "top", "ad": {"b64": "YiI="}}
    first, second = clicks.predict({"instances": [ROW, other]}).json()["predictions"]
    assert first == {"sum": 6.5, "ad_upper": "A", "tags": 2, "first_bytes": {"b64": "eCt5"}, "place": 1}
    assert second == {"sum": 7.5, "ad_upper": 'B"', "tags": 0, "first_bytes": {"b64": ""}, "place": 0}


def test_columns_take_lists_of_varying_length_in_both_spellings(clicks: Server) -> None:
    columns = {"price": [[1.0, 2.5]] * 2, "ad": ["a", "b"], "hour": [3, 4], "place": ["top", "side"]}
    ours = clicks.predict({"inputs": {**columns, "tags": [["x"], ["y", "z"]]}}).json()["outputs"]
    theirs = {"tags_values": ["x", "y", "z"], "tags_row_splits": [0, 1, 3]}
    assert clicks.predict({"inputs": {**columns, **theirs}}).json()["outputs"] == ours
    assert (ours["tags"], ours["sum"]) == ([1, 2], [6.5, 7.5])
    theirs["tags_row_splits"] = [0, 2, 1]
    assert "are no row splits of 3 values" in clicks.refused({"inputs": {**columns, **theirs}})


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"hour": 1.5}, "instances[0].hour is a number, 1.5, and the model takes int32"),
        ({"hour": 2**31}, "instances[0].hour is too large or too small for int32"),
        ({"price": [1.0]}, "has the shape [1, 1], and the model takes float32 of shape [?, 2]"),
        ({"tags": "x"}, "instances[0].tags is no list"),
        ({"tags": ["x", 1]}, "instances[0].tags[1] is a whole number, 1, and the model takes a text"),
        ({"ad": {"b64": "?"}}, "instances[0].ad holds no Base64"),
        ({"place": "bottom"}, "the feature is one of: side, top"),
        ({"prise": 1}, "'prise' is no feature of the model; did you mean 'price'?"),
    ],
)
def test_a_bad_feature_is_named_with_what_it_should_be(change: dict[str, object], said: str, clicks: Server) -> None:
    assert said in clicks.refused({"instances": [{**ROW, **change}]})


def test_a_missing_feature_is_named_with_its_type(clicks: Server) -> None:
    row = {name: value for name, value in ROW.items() if name != "hour"}
    assert "instances[1]: the feature 'hour' is missing (int32" in clicks.refused({"instances": [ROW, row]})
    row = {name: value for name, value in ROW.items() if name != "ad"}
    assert "instances[0]: the feature 'ad' is missing (text)" in clicks.refused({"instances": [row]})


def test_columns_of_different_lengths_are_told_apart(clicks: Server) -> None:
    columns = {"price": [[1, 2]], "ad": ["a", "b"], "hour": [3], "place": ["top"], "tags": [["x"]]}
    assert "different numbers of rows: ad: 2, hour: 1" in clicks.refused({"inputs": columns})


def test_a_body_that_is_too_large_is_refused_before_it_is_read(clicks: Server) -> None:
    assert "serve.max_body" in clicks.refused(b" " * (5 << 20), status=413)


def test_a_large_request_is_answered_as_a_small_one(clicks: Server) -> None:
    rows = [{**ROW, "hour": hour, "tags": ["t"] * (hour % 5)} for hour in range(3000)]
    found = clicks.predict({"instances": rows}).json()["predictions"]
    assert [row["sum"] for row in found] == [3.5 + hour for hour in range(3000)]
    assert [row["tags"] for row in found] == [hour % 5 for hour in range(3000)]


def test_metrics_are_those_of_the_catalogue_and_count_what_was_asked(clicks: Server) -> None:
    from prometheus_client.parser import text_string_to_metric_families

    from millrace.app.monitoring.metrics.serving_catalogue import SERVING

    clicks.predict({"instances": [ROW]})
    families = {each.name: each for each in text_string_to_metric_families(clicks.http.get("/metrics").text)}
    of_memory = {one.name for one in SERVING if one.short.startswith(("serve_memory_", "serve_log_"))}
    assert set(families) == {one.name.removesuffix("_total") for one in SERVING if one.name not in of_memory}
    answered = [s for s in families["millrace_serve_requests"].samples if s.labels["outcome"] == "answered"]
    assert answered[0].value >= 1
    assert families["millrace_serve_version"].samples[0].value == 7
    page = clicks.http.get("/metrics", headers={"accept": "application/openmetrics-text"})
    assert page.headers["content-type"].startswith("text/plain")
    kinds = dict(line.split()[2:] for line in page.text.splitlines() if line.startswith("# TYPE "))
    assert {name: kind for name, kind in kinds.items() if "_cpu_" in name} == {
        "millrace_serve_process_cpu_seconds_total": "counter",
        "millrace_serve_process_cpu_seconds": "gauge",
    }
    assert json.loads(clicks.http.get("/readyz").text)["status"] == "ok"
