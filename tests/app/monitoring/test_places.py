"""Every place of /status and every family of /metrics, as programs and boards know them: none moves or changes.

New ones are written into the file beside this test by `python -m tests.app.monitoring.test_places`, which takes none
away. One that is to go is taken out of the file by hand.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from millrace.app.monitoring.metrics.catalogue import CATALOGUE
from millrace.app.monitoring.models import Status

_FILE = Path(__file__).with_name("places.txt")
Part = Mapping[str, Any]


def known() -> set[str]:
    """Return each place of /status with its type, and each metric with its kind and labels."""
    schema = Status.model_json_schema(mode="serialization")
    metrics = (f"metric {one.name} {one.kind} {' '.join(one.labels)}".rstrip() for one in CATALOGUE.values())
    return {*places(schema, schema["$defs"], "status"), *metrics}


def places(part: Part, parts: Mapping[str, Part], path: str) -> Iterator[str]:
    """Yield the places in a part of a JSON schema; what may be left out has a question mark."""
    if "$ref" in part:
        part = parts[part["$ref"].rpartition("/")[2]]
    choices = [one for one in part.get("anyOf", ()) if one != {"type": "null"}]
    if choices:
        for one in choices:
            yield from places(one, parts, path)
        return
    yield f"{path} {part.get('type', 'anything')} {' '.join(map(str, part.get('enum', ())))}".rstrip()
    for name, inner in part.get("properties", {}).items():
        yield from places(inner, parts, f"{path}.{name}{'' if name in part.get('required', ()) else '?'}")
    if isinstance(inner := part.get("additionalProperties"), dict):
        yield from places(inner, parts, f"{path}.*")
    if "items" in part:
        yield from places(part["items"], parts, f"{path}[]")


def test_status_and_metrics_keep_every_place_name_type_and_label() -> None:
    assert set(_FILE.read_text().splitlines()) - known() == set()


if __name__ == "__main__":
    _FILE.write_text("\n".join(sorted({*(_FILE.read_text().splitlines() if _FILE.exists() else ()), *known()})) + "\n")
