"""Judges whether a release may be published, and lists what is published: versions, changelog, tag, wheels and sdist.

    python -m tests.house.release dist

Ends with 1, and a line for each thing that is missing; else writes dist/SHA256SUMS and prints the commands that
publish. It publishes nothing itself.
"""

import hashlib
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Iterator, Sequence
from email.parser import Parser
from pathlib import Path

ROOT = Path(__file__).parents[2]
VERSIONED = (
    "Dockerfile",
    "compose.yaml",
    "compose.archive.yaml",
    "compose.group.yaml",
    "docs/kubernetes.md",
    "examples/clicks/Dockerfile",
    "k8s/base/kustomization.yaml",
    "k8s/chart/Chart.yaml",
    "k8s/chart/values.yaml",
    "k8s/components",
)
"""The files, and folders of files, that name the image by its version."""
_IMAGE = re.compile(
    r"(?:millrace:|image\.version=\"|newTag: |^version: |^appVersion: |^  tag: )(\d+\.\d+\.\d+)", re.MULTILINE
)


def version_of(root: Path = ROOT) -> str:
    """Return the version that pyproject.toml names."""
    return str(tomllib.loads((root / "pyproject.toml").read_text())["project"]["version"])


def complaints_about_texts(root: Path, version: str) -> Iterator[str]:
    """Yield what the texts of the tree lack of this version."""
    changelog = (root / "CHANGELOG.md").read_text()
    section = re.search(rf"^## \[{re.escape(version)}\] - (\d{{4}}-\d\d-\d\d)$(.*?)(?=^## |\Z)", changelog, re.M | re.S)
    if section is None:
        yield f"CHANGELOG.md: no section `## [{version}] - YYYY-MM-DD`: give what is Unreleased that heading"
    elif not re.search(r"^- ", section[2], re.MULTILINE):
        yield f"CHANGELOG.md: the section of {version} says nothing"
    unreleased = re.search(r"^## \[Unreleased\]$(.*?)(?=^## |\Z)", changelog, re.M | re.S)
    if unreleased is not None and re.search(r"^- ", unreleased[1], re.MULTILINE):
        yield "CHANGELOG.md: something is still under [Unreleased]"
    for name in VERSIONED:
        place = root / name
        for file in sorted(path for path in place.rglob("*") if path.is_file()) if place.is_dir() else [place]:
            others = {found for found in _IMAGE.findall(file.read_text()) if found != version}
            if others:
                yield f"{file.relative_to(root)}: names version {', '.join(sorted(others))}, not {version}"


def complaints_about_git(root: Path, version: str) -> Iterator[str]:
    """Yield what is wrong with the commit."""
    if _git(root, "status", "--porcelain"):
        yield "git: there are changes that are not committed"
    tag = f"v{version}"
    if _git(root, "tag", "--list", tag) and _git(root, "rev-list", "-n1", tag) != _git(root, "rev-parse", "HEAD"):
        yield f"git: the tag {tag} is of another commit: this version was released; raise the version"


def complaints_about_files(files: Sequence[Path], version: str) -> Iterator[str]:
    """Yield what is wrong with wheels and sdist."""
    wheels = [path for path in files if path.suffix == ".whl"]
    sdists = [path for path in files if path.name.endswith(".tar.gz")]
    if not any(path.name.endswith("-any.whl") for path in wheels) or len(sdists) != 1:
        there = ", ".join(path.name for path in files) or "nothing"
        yield f"there must be a wheel for any machine and one sdist, and there is {there}: run `make dist`"
        return
    with tarfile.open(sdists[0]) as sdist:
        inside = {name.partition("/")[2] for name in sdist.getnames()}
    for path in wheels:
        with zipfile.ZipFile(path) as wheel:
            names = wheel.namelist()
            (home,) = {name.partition("/")[0] for name in names if ".dist-info/" in name}
            facts = Parser().parsestr(wheel.read(f"{home}/METADATA").decode())
        if facts["Version"] != version:
            yield f"{path.name}: is of version {facts['Version']}, not {version}"
        if not any(name.startswith(f"{home}/licenses/") for name in names):
            yield f"{path.name}: brings no licence"
        compiled = [name for name in names if name.endswith(".so")]
        if bool(compiled) == path.name.endswith("-any.whl"):
            yield f"{path.name}: compiled code is where there must be none, or is missing"
        # What the wheel installs must be in the source too, or the wheel cannot be built again from it.
        ours = {name for name in names if ".dist-info/" not in name} - {*compiled}
        missing = sorted(name for name in ours if name.removeprefix("millrace/") not in inside and name not in inside)
        if missing:
            yield f"{sdists[0].name}: lacks {len(missing)} files of the wheel, as {missing[0]}"


def _git(root: Path, *arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, check=True).stdout.strip()


def main() -> None:
    """Judge, then print the commands."""
    folder, version = Path(sys.argv[1]), version_of()
    files = sorted(path for path in folder.iterdir() if path.is_file() and path.name != "SHA256SUMS")
    found = [
        *complaints_about_texts(ROOT, version),
        *complaints_about_git(ROOT, version),
        *complaints_about_files(files, version),
    ]
    for line in found:
        print(line, file=sys.stderr)  # noqa: T201 - a command
    if found:
        sys.exit(1)
    sums = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}" for path in files]
    (folder / "SHA256SUMS").write_text("\n".join(sums) + "\n")
    packages = [str(path) for path in files if path.name.endswith((".whl", ".tar.gz"))]
    commands = (
        f"git tag --sign v{version} --message 'millrace {version}'",
        f"git push origin v{version}",
        f"uv publish {' '.join(packages)}",
        f"docker buildx build --platform linux/amd64,linux/arm64 --target cpu --sbom=true --provenance=true "
        f"--build-arg REVISION=$(git rev-parse HEAD) --tag REGISTRY/millrace:{version} --push .",
    )
    print("\n".join([f"millrace {version} may be published. What is left:", *commands]))  # noqa: T201 - a command


if __name__ == "__main__":
    main()
