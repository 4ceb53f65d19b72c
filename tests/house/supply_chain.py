"""Judges what runs: its bill of materials, its licences, and what is known of its vulnerabilities.

    python -m tests.house.supply_chain sbom build/sbom.json
    python -m tests.house.supply_chain licences build/licences.json docs/licences.md
    python -m tests.house.supply_chain audit build/audit.json

The first ends with 1 if a package of requirements/run.lock is missing in the file. The second reads what pip-licenses
has found out about the installed packages, writes the page, and ends with 1 if a licence is unknown or not allowed. The
third reads what pip-audit has found, says how many packages it has audited, and ends with 1 if one has a vulnerability,
or was not audited.
"""

import json
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packaging.markers import Marker
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
LOCK = ROOT / "requirements" / "run.lock"
PAGE = ROOT / "docs" / "licences.md"
ALLOWED = frozenset({"0BSD", "Apache-2.0", "BSD", "CC0-1.0", "ISC", "MIT", "MPL-2.0", "PSF-2.0", "Zlib"})
"""Each allows to use and to pass on, under terms for the package alone. MPL's terms are for its own files."""
READ = {"namex": "Apache-2.0"}
"""Licences of packages that do not declare one, as somebody has read them in the text that the package brings."""
_ALSO = {
    "3-Clause BSD License": "BSD",
    "Apache License 2.0": "Apache-2.0",
    "Apache Software License": "Apache-2.0",
    "BSD License": "BSD",
    "BSD-2-Clause": "BSD",
    "BSD-3-Clause": "BSD",
    "ISC License (ISCL)": "ISC",
    "MIT License": "MIT",
    "Mozilla Public License 2.0 (MPL 2.0)": "MPL-2.0",
}
"""Other spellings."""
_PIN = re.compile(r"^([A-Za-z0-9._-]+)==([^ ;\\]+)(?: ; ([^\\]+?))? \\$", re.MULTILINE)
_PAGE = """\
# Licences

<!-- Written by `make licences`; a test compares it with requirements/run.lock. -->

millrace is under [Apache 2.0](../LICENSE). This is what runs with it: every package of `requirements/run.lock`, which
the `cpu` image holds, with the licence that the package declares. The `gpu` image brings NVIDIA's libraries beside
these, under NVIDIA's own licence. `make licences` fails on a licence that is unknown or not among
{allowed}.

| package | version | licence |
|---|---|---|
{rows}
"""


@dataclass(frozen=True)
class Pinned:
    """A package of the lock."""

    name: str
    version: str
    installed: bool
    """Whether it is meant for this Python and this system."""


def pinned() -> Iterator[Pinned]:
    """Yield every package of the lock."""
    for name, version, marker in _PIN.findall(LOCK.read_text()):
        yield Pinned(canonicalize_name(name), version, not marker or Marker(marker).evaluate())


def missing_in_sbom(sbom: Mapping[str, object]) -> list[str]:
    """Return the packages of the lock that the bill of materials lacks."""
    components = sbom["components"]
    assert isinstance(components, list)
    listed = {(canonicalize_name(one["name"]), one["version"]) for one in components}
    return [f"{one.name} {one.version}" for one in pinned() if (one.name, one.version) not in listed]


def terms(licence: str) -> set[str]:
    """Return the licences that an expression joins, each by its usual name."""
    if licence in _ALSO:
        return {_ALSO[licence]}
    parts = {part.strip("() ") for part in re.split(r"; | AND | OR ", licence)}
    return {_ALSO.get(part, part) for part in parts}


def licences_of(found: list[dict[str, str]]) -> dict[str, str]:
    """Return the licence of each package of the lock, from what pip-licenses says of those that are installed."""
    declared: dict[str, str] = {canonicalize_name(one["Name"]): one["License"] for one in found}
    return {one.name: READ.get(one.name, declared.get(one.name, "UNKNOWN")) for one in pinned() if one.installed}


def page_of(licences: Mapping[str, str]) -> str:
    """Return the page. A package that is for other systems alone has no licence in it."""
    rows = [f"| {one.name} | {one.version} | {licences.get(one.name, 'on other systems only')} |" for one in pinned()]
    return _PAGE.format(allowed=", ".join(sorted(ALLOWED)), rows="\n".join(rows))


def vulnerabilities(audit: Mapping[str, list[dict[str, Any]]]) -> Iterator[str]:
    """Yield what pip-audit has found, and the packages of the lock that it has not audited."""
    audited = {str(canonicalize_name(one["name"])): one for one in audit["dependencies"] if "skip_reason" not in one}
    for one in pinned():
        if one.name not in audited:
            if one.installed:
                yield f"{one.name} {one.version} was not audited"
            continue
        for known in audited[one.name]["vulns"]:
            mended = ", ".join(known["fix_versions"]) or "no version yet"
            yield f"{one.name} {one.version}: {known['id']}, mended in {mended}"


def main(kind: str, found: str, page: str = "") -> int:
    """Judge the file; return the exit code."""
    read = json.loads(Path(found).read_text())
    if kind == "sbom":
        complaints = [f"{one} is not in {found}" for one in missing_in_sbom(read)]
    elif kind == "audit":
        complaints = list(vulnerabilities(read))
        count = sum("skip_reason" not in one for one in read["dependencies"])
        sys.stdout.write(f"audited: {count} packages\n")
    else:
        licences = licences_of(read)
        bad = {name: licence for name, licence in licences.items() if not terms(licence) <= ALLOWED}
        complaints = [f"{name}: {licence} is not allowed" for name, licence in bad.items()]
        Path(page).write_text(page_of(licences))
    sys.stderr.writelines(f"{one}\n" for one in complaints)
    return int(bool(complaints))


if __name__ == "__main__":
    raise SystemExit(main(*sys.argv[1:]))
