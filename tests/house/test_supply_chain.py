"""What runs is listed: each locked package has a licence that is allowed, and the recipes judge what they write."""

import json
import re
from pathlib import Path

import pytest

from tests.house import supply_chain
from tests.house.supply_chain import ALLOWED, PAGE, licences_of, main, missing_in_sbom, page_of, pinned, terms

MAKEFILE = (supply_chain.ROOT / "Makefile").read_text()
ROWS = re.findall(r"^\| (\S+) \| (\S+) \| (.+) \|$", PAGE.read_text(), re.MULTILINE)[1:]
DECLARED = [{"Name": one.name.replace("-", "_"), "License": "MIT License"} for one in pinned()]


def test_the_page_lists_every_package_of_the_lock_by_its_version() -> None:
    found = [(one.name, one.version) for one in pinned()]
    assert len(found) > 50
    assert [(name, version) for name, version, _ in ROWS] == found, "run make licences"


def test_every_licence_of_the_page_is_allowed() -> None:
    assert [row for row in ROWS if row[2] != "on other systems only" and not terms(row[2]) <= ALLOWED] == []
    assert sum(row[2] == "on other systems only" for row in ROWS) <= 2


@pytest.mark.parametrize("recipe", ["sbom", "licences", "audit"])
def test_the_recipes_pin_their_tools_and_judge_what_they_write(recipe: str) -> None:
    (steps,) = re.findall(rf"^{recipe}: .*\n((?:\t.*\n)+)", MAKEFILE, re.MULTILINE)
    assert re.search(r"--from [a-z-]+==\d[\w.]+ ", steps)
    assert f"-m tests.house.supply_chain {recipe} " in steps
    assert "requirements/run.lock" in steps


def test_a_package_that_the_bill_of_materials_lacks_is_named() -> None:
    first, *rest = pinned()
    components = [{"name": one.name, "version": one.version} for one in rest]
    assert missing_in_sbom({"components": components}) == [f"{first.name} {first.version}"]
    assert missing_in_sbom({"components": [*components, {"name": first.name, "version": first.version}]}) == []


@pytest.mark.parametrize("licence", ["UNKNOWN", "GPL-3.0-only", "MIT AND AGPL-3.0-only", "Proprietary", ""])
def test_a_licence_that_is_unknown_or_not_allowed_is_named(
    licence: str, tmp_path_factory: pytest.TempPathFactory, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path_factory.mktemp("licences")
    given = [{"Name": "H11", "License": licence} if one["Name"] == "h11" else one for one in DECLARED]
    for name, found, code in (("bad", given, 1), ("good", DECLARED, 0)):
        (folder / name).write_text(json.dumps(found))
        assert main("licences", str(folder / name), str(folder / "page.md")) == code
    assert capsys.readouterr().err == f"h11: {licence} is not allowed\n"


def test_a_vulnerability_is_named_and_so_is_what_was_not_audited(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second, *rest = [one for one in pinned() if one.installed]
    good: list[dict[str, object]] = [{"name": one.name, "version": one.version, "vulns": []} for one in rest]
    known = {"id": "PYSEC-2026-1", "fix_versions": ["9.9"], "aliases": [], "description": ""}
    bad = {"name": first.name.replace("-", "_"), "version": first.version, "vulns": [known]}
    skipped = {"name": second.name, "skip_reason": "not on PyPI"}
    (tmp_path / "audit.json").write_text(json.dumps({"dependencies": [*good, bad, skipped], "fixes": []}))
    assert main("audit", str(tmp_path / "audit.json")) == 1
    said = capsys.readouterr()
    assert said.err.splitlines() == [
        f"{first.name} {first.version}: PYSEC-2026-1, mended in 9.9",
        f"{second.name} {second.version} was not audited",
    ]
    assert said.out == f"audited: {len(rest) + 1} packages\n"


def test_a_package_that_nobody_has_looked_at_has_no_known_licence() -> None:
    assert set(licences_of([]).values()) - set(supply_chain.READ.values()) == {"UNKNOWN"}
    assert "| h11 |" in page_of(licences_of(DECLARED))
