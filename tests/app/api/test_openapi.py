"""The OpenAPI document: every operation and status has a description."""

from tests.app.api_rig import Client


def test_every_route_has_its_own_summary_and_a_tag(api: Client) -> None:
    operations = [one for methods in api.seen("/openapi.json")["paths"].values() for one in methods.values()]
    summaries = [one["summary"] for one in operations]
    assert len(set(summaries)) == len(summaries)
    assert all(" " in summary and not summary.endswith(".") for summary in summaries)
    assert all(one["tags"] for one in operations)


def test_every_status_says_what_it_means_and_problems_say_what_they_are(api: Client) -> None:
    for path, methods in api.seen("/openapi.json")["paths"].items():
        for operation in methods.values():
            for status, response in operation["responses"].items():
                assert response["description"].endswith("."), (path, status)
                if status >= "400" and status != "503":
                    assert list(response["content"]) == ["application/problem+json"], (path, status)
