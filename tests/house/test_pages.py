"""What the pages say to type would be understood, and where they point there is something."""

import re
from collections.abc import Iterable
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from tests.house.figures import kept
from tests.house.pages import PAGES, ROOT, anchors, blocks_to_type, links, spans_to_type
from tests.typed import understood, verbs

ARCHITECTURE = ROOT / "docs" / "architecture.md"
each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())


def of_millrace(commands: Iterable[list[str]]) -> list[list[str]]:
    return [words for name, *words in commands if name == "millrace"]


def test_there_is_something_to_hold() -> None:
    assert {"README.md", "CHANGELOG.md", "operating.md"} <= {page.name for page in PAGES}
    assert sum(len(of_millrace(blocks_to_type(page))) for page in PAGES) > 20
    assert sum(len(of_millrace(spans_to_type(page))) for page in PAGES) > 40


@each_page
def test_every_command_of_a_block_would_be_understood(page: Path) -> None:
    for words in of_millrace(blocks_to_type(page)):
        understood(words)


@each_page
def test_every_command_in_a_sentence_would_be_understood(page: Path) -> None:
    for words in of_millrace(spans_to_type(page)):
        understood(words, whole=False)


def test_every_verb_stands_on_a_page_as_it_is_typed() -> None:
    shown = {understood(words) for page in PAGES for words in of_millrace(blocks_to_type(page))}
    told = {understood(words, whole=False) for page in PAGES for words in of_millrace(spans_to_type(page))}
    assert verbs().keys() - shown - told == set()


@each_page
def test_every_recipe_exists(page: Path) -> None:
    recipes = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    typed = [words for name, *words in (*blocks_to_type(page), *spans_to_type(page)) if name == "make"]
    asked = {word for words in typed for word in words if "=" not in word}
    assert asked - recipes == set()


@each_page
def test_every_link_within_the_project_leads_somewhere(page: Path) -> None:
    broken = []
    for link in links(page):
        to = urlsplit(link)
        if to.scheme:
            continue
        target = (page.parent / unquote(to.path)).resolve() if to.path else page
        if not target.exists() or (to.fragment and to.fragment not in anchors(target)):
            broken.append(link)
    assert broken == []


def test_readme_and_pages_print_the_kept_figures() -> None:
    readme, proof = ((ROOT / name).read_text() for name in ("README.md", "docs/guarantees.md"))
    figures = {name: told.value for name, told in kept().items()}
    assert f"[{figures['kills']} kills, {figures['lost']} lost, {figures['learnt_twice']} twice]" in readme
    assert f"JSON trains {figures['json_over_naive']:.0f} times faster" in readme
    printed = re.findall(r"^\| `(\w+)` \|.*?\*\*(.+?)\*\*", proof, re.MULTILINE)
    assert len(printed) > 5
    assert {name: float(text.replace(",", "")) for name, text in printed} == {
        name: figures[name] for name, _ in printed
    }


def test_every_file_and_module_that_the_architecture_names_is_there() -> None:
    spans = re.findall(r"`((?:consumers|pipelines|training|app|tests)[./][\w./]+)`", ARCHITECTURE.read_text())
    assert len(spans) > 30
    settings = {span for span in spans if span.startswith("training.") and span.count(".") == 1}
    missing = [span for span in spans if span not in settings and not _is_there(span)]
    assert missing == []


@each_page
def test_every_file_of_the_tree_that_a_page_names_is_there(page: Path) -> None:
    rooms = {path.name for path in ROOT.iterdir() if path.is_dir()}
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    named = re.findall(r"`([\w.-]+(?:/[\w.-]+)*\.(?:py|md|toml|lock|in|java|sh|css|js|proto))`", text)
    files = {path.name for room in rooms - {"build", ".venv", ".git"} for path in (ROOT / room).rglob("*.*")}
    files |= {path.name for path in ROOT.iterdir()}
    missing = [
        name
        for name in named
        if not name.startswith("kafka-")  # Kafka's own tools
        if not ((ROOT / name).exists() if name.partition("/")[0] in rooms else Path(name).name in files)
    ]
    assert missing == []


def test_the_listing_of_the_architecture_names_modules_that_are_there() -> None:
    listing = re.search(r"^```\n(consumers/ .*?)^```", ARCHITECTURE.read_text(), re.MULTILINE | re.DOTALL)
    assert listing is not None
    missing, room, seen = list[str](), "", 0
    for line in listing[1].splitlines():
        if top := re.match(r"(\w+)/", line):
            room = top[1]
        elif inside := re.match(r"  (\w+/|\w+\.py|(?:\w+ )+(?=…))", line):
            for name in inside[1].split():
                path = ROOT / room / name
                seen += 1
                missing += [] if path.exists() or path.with_suffix(".py").exists() else [f"{room}/{name}"]
    assert missing == []
    assert seen > 30


def _is_there(span: str) -> bool:
    """Return whether a path, or a dotted module, is in the tree."""
    if "/" in span:
        return (ROOT / span).exists()
    path = ROOT.joinpath(*span.split("."))
    return path.is_dir() or path.with_suffix(".py").exists()
