"""A checkpoint that is exported and served: raw features as producers send them, the export's own answers."""

from pathlib import Path

import numpy as np
import pytest

from tests.app.tools.export.exported_model import project
from tests.app.tools.serve.server_rig import serving

pytestmark = [pytest.mark.tensorflow, pytest.mark.slow]
ROWS = [
    {"price": 1.5, "ad": "1", "color": "green", "seen": [0.5, 2.0], "tags": ["a", "b", "a"]},
    {"price": 0.5, "ad": "x", "color": "blue", "seen": [], "tags": []},
]


def test_an_export_answers_over_http_as_it_does_in_process(tmp_path: Path) -> None:
    import tensorflow as tf

    from millrace.app.tools.export.export import export_checkpoint
    from millrace.app.tools.export.export_folder import folder_of

    found = project(tmp_path)
    made = export_checkpoint(found, None, folder_of(found.settings))
    expected = tf.saved_model.load(str(made.folder)).signatures["serving_default"](
        price=tf.constant([1.5, 0.5]),
        ad=tf.constant(["1", "x"]),
        color=tf.constant(["green", "blue"]),
        seen_values=tf.constant([0.5, 2.0]),
        seen_row_splits=tf.constant([0, 2, 2], tf.int64),
        tags_values=tf.constant(["a", "b", "a"]),
        tags_row_splits=tf.constant([0, 3, 3], tf.int64),
    )
    with serving(tmp_path, "clicks", serve__listen="127.0.0.1:0", serve__drain="0s") as server:
        server.answers_with(made.manifest.number)
        said = server.predict({"instances": ROWS}).json()["predictions"]
        np.testing.assert_allclose([row["kind"] for row in said], expected["kind"].numpy(), rtol=1e-6)
        assert [row["kind_class"].encode() for row in said] == expected["kind_class"].numpy().tolist()
        records = [{**row, "kind": "is not looked at"} for row in ROWS]
        assert server.predict({"records": records}).json()["predictions"] == said
        assert "the feature is one of: blue, green, red" in server.refused(
            {"instances": [{**ROWS[0], "color": "pink"}]}
        )
        served = server.get("/served")["export"]
        assert (served["number"], served["classes"]) == (2, {"kind": ["cat", "dog", "cow"]})
