"""The pages of the project, in parts: what is linked, what headings there are, what is to be typed."""

import re
import shlex
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from markdown_it import MarkdownIt
from markdown_it.token import Token

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("examples/*/*.md")])
_TYPED = re.compile(r"(^|[\s/])(millrace|make) ")
_ENDS_A_COMMAND = re.compile(r"[();<>|&]+")
_SETS_A_VARIABLE = re.compile(r"[A-Z_]+=")


@cache
def _blocks(page: Path) -> list[Token]:
    return MarkdownIt("commonmark").enable("table").parse(page.read_text(encoding="utf-8"))


def _spans(page: Path) -> Iterator[Token]:
    for block in _blocks(page):
        yield from block.children or ()


def links(page: Path) -> list[str]:
    """Where its links and images point."""
    found = (span.attrGet("href") or span.attrGet("src") for span in _spans(page))
    return [str(target) for target in found if target]


def anchors(page: Path) -> set[str]:
    """What may stand behind a # in a link to it, as GitHub makes it out of the headings."""
    named: Counter[str] = Counter()
    for mark, text in zip(_blocks(page), _blocks(page)[1:], strict=False):
        if mark.type == "heading_open":
            words = "".join(span.content for span in text.children or ())
            named[re.sub(r"[^\w\- ]", "", words.lower()).replace(" ", "-")] += 1
    return {f"{name}-{turn}" if turn else name for name, times in named.items() for turn in range(times)}


def blocks_to_type(page: Path) -> Iterator[list[str]]:
    """The commands of its blocks, as words: those of millrace and of make."""
    for block in _blocks(page):
        if block.type == "fence" and not block.info:
            for line in block.content.replace("\\\n", " ").splitlines():
                yield from _commands(line)


def spans_to_type(page: Path) -> Iterator[list[str]]:
    """The commands within its sentences, as words."""
    for span in _spans(page):
        if span.type == "code_inline":
            yield from _commands(span.content)


def _commands(line: str) -> Iterator[list[str]]:
    if not _TYPED.search(line):
        return
    lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    command: list[str] = []
    for word in (*lexer, ";"):
        if word == "--":  # what stood before it runs what comes
            command = []
        elif not _ENDS_A_COMMAND.fullmatch(word):
            command.append(word)
        else:
            yield from _ours(command)
            command = []


def _ours(command: list[str]) -> Iterator[list[str]]:
    while command and _SETS_A_VARIABLE.match(command[0]):
        command = command[1:]
    if command and (name := Path(command[0]).name) in {"millrace", "make"}:
        yield [name, *command[1:]]
