"""/docs in a real browser: Swagger UI, under the strict policy, without any other origin."""

from urllib.parse import urlsplit

import httpx
from playwright.sync_api import expect

from tests.app.api_rig import Rig, serving
from tests.browsing import NewPage, is_complaint


def test_swagger_ui_lists_all_operations_and_contacts_no_other_origin(new_page: NewPage, rig: Rig) -> None:
    complaints: list[str] = []
    hosts: set[str] = set()
    page = new_page(height=844)
    page.on("console", lambda said: complaints.append(said.text) if is_complaint(said) else None)
    page.on("request", lambda request: hosts.add(urlsplit(request.url).netloc))
    with serving(rig) as server:
        page.goto(f"http://127.0.0.1:{server.port}/docs")
        shown = page.locator(".opblock-summary-path")
        paths = httpx.get(f"http://127.0.0.1:{server.port}/openapi.json").json()["paths"]
        expect(shown).to_have_count(sum(len(methods) for methods in paths.values()))
        assert {path.replace("\u200b", "") for path in shown.all_inner_texts()} == set(paths)
        for width in (1440, 390):
            page.set_viewport_size({"width": width, "height": 844})
            assert page.evaluate("document.scrollingElement.scrollWidth") <= width
        page.locator("#operations-Probes-get_livez .opblock-summary-control").click()
        page.get_by_role("button", name="Try it out").click()
        page.get_by_role("button", name="Execute").click()
        expect(page.locator(".live-responses-table .response-col_status").last).to_contain_text("200")
        assert hosts == {f"127.0.0.1:{server.port}"}
    assert complaints == []
