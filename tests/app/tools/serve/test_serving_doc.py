"""docs/serving.md lists the routes that there are, and its samples are answered as they stand."""

import re
from pathlib import Path

from millrace.app.tools.serve.prediction_routes import DOCUMENTED

PAGE = (Path(__file__).parents[4] / "docs" / "serving.md").read_text()
_ROW = re.compile(r"^\| `((?:GET|POST) /\S+)` \| (TF Serving's|ours) \|", re.MULTILINE)


def test_the_table_of_the_docs_has_every_route_and_no_other() -> None:
    assert dict(_ROW.findall(PAGE)) == DOCUMENTED
