"""The files behind /docs: each comes under the strict policy, and no other file of the package is served."""

import pytest

from millrace.app.api.routes.page import POLICY
from tests.app.api_rig import Client, is_problem


@pytest.mark.parametrize("path", ["/docs", "/docs/start.js", "/docs/swagger-ui-bundle.js", "/docs/swagger-ui.css"])
def test_docs_and_their_files_come_under_the_strict_policy(api: Client, path: str) -> None:
    answer = api.get(path)
    assert answer.status_code == 200
    assert answer.headers["content-security-policy"] == POLICY
    assert api.get(path, headers={"if-none-match": answer.headers["etag"]}).status_code == 304


@pytest.mark.parametrize("name", ["redoc.standalone.js", "%2e%2e%2fcore.py", "..%2f..%2fservice.py"])
def test_no_other_file_of_the_package_is_served(api: Client, name: str) -> None:
    is_problem(api.get(f"/docs/{name}"), 404)
