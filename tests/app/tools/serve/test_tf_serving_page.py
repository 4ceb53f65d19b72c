"""Each request of TF Serving's page about its REST API, as it stands there, with the answer that the page promises."""

import json
from collections.abc import Iterator

import pytest

from tests.app.tools.serve.exports_rig import Documented, lay_down
from tests.app.tools.serve.server_rig import Server, serving

pytestmark = pytest.mark.tensorflow
ROWS = """{
 "instances": [
   {
     "tag": "foo",
     "signal": [1, 2, 3, 4, 5],
     "sensor": [[1, 2], [3, 4]]
   },
   {
     "tag": "bar",
     "signal": [3, 4, 1, 2, 5],
     "sensor": [[4, 5], [6, 8]]
   }
 ]
}"""
"""The page has a bracket too many in it, which no JSON has."""
COLUMNS = """{
 "inputs": {
   "tag": ["foo", "bar"],
   "signal": [[1, 2, 3, 4, 5], [3, 4, 1, 2, 5]],
   "sensor": [[[1, 2], [3, 4]], [[4, 5], [6, 8]]]
 }
}"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("page")
    lay_down(folder / "exports" / "page" / "1", Documented())
    with serving(folder, "page") as server:
        server.answers_with(1)
        yield server


def named(signature: str, body: str) -> str:
    """Return the page's body for one of the model's signatures."""
    return f'{{"signature_name": "{signature}", {body.strip()[1:]}'


def test_rows_of_several_inputs_are_answered_as_a_list_of_objects(server: Server) -> None:
    assert server.predict(ROWS).json() == {"predictions": json.loads(ROWS)["instances"]}


def test_the_same_in_columns_is_answered_as_an_object(server: Server) -> None:
    assert server.predict(COLUMNS).json() == {"outputs": json.loads(COLUMNS)["inputs"]}


@pytest.mark.parametrize(
    ("signature", "body"),
    [
        ("words", '{\n  "instances": [ "foo", "bar", "baz" ]\n}'),
        ("pairs", '{\n  "instances": [ [[1, 2]], [[3, 4]] ]\n}'),
    ],
)
def test_the_values_of_a_single_input_need_no_name(signature: str, body: str, server: Server) -> None:
    values = json.loads(body)["instances"]
    assert server.predict(named(signature, body)).json() == {"predictions": values}
    columns = body.replace("instances", "inputs")
    assert server.predict(named(signature, columns)).json() == {"outputs": values}


def test_bytes_go_in_and_come_out_as_base64_by_the_outputs_name(server: Server) -> None:
    rows = '{"instances": [{"image": { "b64": "aW1hZ2UgYnl0ZXM=" }}, {"image": { "b64": "YXdlc29tZQ==" }}]}'
    assert server.predict(named("images", rows)).json() == {
        "predictions": [
            {"image_bytes": {"b64": "aW1hZ2UgYnl0ZXM="}, "caption": "IMAGE BYTES"},
            {"image_bytes": {"b64": "YXdlc29tZQ=="}, "caption": "AWESOME"},
        ]
    }


def test_columns_need_not_share_their_first_dimension(server: Server) -> None:
    body = '{"inputs": {"values": [1.1, -10.0, 0, 1e2], "scale": 2, "wanted": [true, false]}}'
    found = server.predict(named("mixed", body)).json()["outputs"]
    assert found == {"scaled": [2.2, -20.0, 0.0, 200.0], "unwanted": [False, True]}


def test_special_numbers_are_tokens_in_both_directions(server: Server) -> None:
    body = '{"inputs": {"values": [ 1.0, -3.14, NaN, Infinity, -Infinity ], "scale": 1.0, "wanted": []}}'
    text = server.predict(named("mixed", body)).text
    assert '"scaled": [1.0, -3.14, NaN, Infinity, -Infinity]' in text


def test_metadata_of_a_version_has_every_signature(server: Server) -> None:
    for path in ("/metadata", "/versions/1/metadata"):
        found = server.get(path)
        assert found["model_spec"] == {"name": "page", "signature_name": "", "version": "1"}
        shown = found["metadata"]["signature_def"]["signature_def"]
        assert {"serving_default", "words", "pairs", "images", "mixed"} <= shown.keys()
        assert shown["mixed"]["inputs"]["scale"]["tensor_shape"] == {"dim": [], "unknown_rank": False}
        assert (shown["images"]["inputs"]["image"]["dtype"], shown["pairs"]["inputs"]["pair"]["dtype"]) == (
            "DT_STRING",
            "DT_INT32",
        )


def test_a_regress_call_is_refused_with_what_to_do(server: Server) -> None:
    body = '{"signature_name": "tensorflow/serving/regress", "examples": [{"x": 1.0}, {"x": 2.0}]}'
    answer = server.http.post("/v1/models/page:regress", content=body)
    assert (answer.status_code, list(answer.json())) == (400, ["error"])
    assert ":predict" in answer.json()["error"]
