"""A number or an id in a path never becomes a path on disk."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

import pytest

from tests.app.api_rig import Client, Rig

pytestmark = pytest.mark.row(27)
_READING = {"open", "os.listdir", "os.scandir", "os.chdir", "os.rename", "os.remove"}
_CODE = Path(__file__).parents[3]
_listening: list[list[str]] = []
CANARY = "canary-outside-4711"


def _note(event: str, arguments: tuple[object, ...]) -> None:
    if _listening and event in _READING and isinstance(arguments[0], str | bytes):
        path = arguments[0]
        _listening[-1].append(path.decode(errors="replace") if isinstance(path, bytes) else path)


sys.addaudithook(_note)  # cannot be removed again; it does nothing while no test listens


@contextmanager
def touched() -> Iterator[list[str]]:
    """Collect the paths that this process touches."""
    _listening.append([])
    try:
        yield _listening[-1]
    finally:
        _listening.pop()


OUTSIDE = [
    "..",
    "../..",
    "../../outside",
    "....//outside",
    "..%2f..%2foutside",
    "..%5c..%5coutside",
    "%2e%2e%2f%2e%2e%2foutside",
    "..;/outside",
    "/etc/passwd",
    "0/../../../outside",
    "0000000000/manifest.json",
    "0\x00",
    "-1",
    "+1",
    "1_0",
    "0x0",
    "1e0",
    "0.0",
    "٠",
    " 0",
    "9" * 400,
    "~",
    "C:outside",
]
READS = ["/checkpoints/{}", "/checkpoints/{}?verify=true", "/operations/{}"]


@pytest.mark.parametrize("where", OUTSIDE)
def test_no_path_leads_out_of_the_folder(rig: Rig, api: Client, where: str) -> None:
    outside = rig.folder.root.parents[1] / "outside"
    outside.mkdir()
    (outside / "manifest.json").write_text(CANARY)
    with touched() as paths:
        answers = [api.get(form.format(quote(where, safe=safe))) for form in READS for safe in ("", "/%")]
        answers += [
            api.post(f"/checkpoints/{quote(where, safe=safe)}/restore", {"dry_run": True}) for safe in ("", "/%")
        ]
        answers += [api.post("/rewind", {"to": where, "dry_run": True})]
    assert {answer.status_code for answer in answers} <= {200, 404, 405, 422}
    assert not [answer.text for answer in answers if CANARY in answer.text]
    ours = (rig.folder.root, _CODE, Path(sys.prefix), Path(sys.base_prefix))
    assert [path for path in paths if not any(Path(path).is_relative_to(folder) for folder in ours)] == []
    assert rig.folder.numbers() == [0]


def test_the_audit_hook_sees_the_paths_that_a_request_touches(rig: Rig, api: Client) -> None:
    with touched() as paths:
        assert api.get("/checkpoints/0").status_code == 200
    assert any("manifest.json" in path for path in paths)
