"""Reads a YAML 1.2 file into plain values, and remembers on which line each of them stands.

The core schema, safely: no tags but its own, times and dates stay text, `NO` is text, `1.0e6` a number. A key that
stands twice is an error. `<<` merges mappings, as YAML 1.1 has it. What a parser's error quotes of the file is left
out: it may hold a secret. The size of the file, and the number of values that its aliases expand to, are bounded.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.composer import Composer
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from millrace.consumers.errors import ConfigError

Key = tuple[str | int, ...]
"""Where a value stands: the keys, and places in lists, that lead to it."""
_CORE = "tag:yaml.org,2002:"
_AS_TEXT = {"str", "timestamp", "value", "merge"}
_MERGE = f"{_CORE}merge"
_MOST_BYTES = 1_048_576
_MOST_VALUES = 50_000
"""Keys and values, each alias counted as often as it is used. The parser takes about a second for as many."""
_MOST_PROBLEMS = 50
_TOO_LARGE = "a config is a page or two, so name the right file, and keep tables in files that model.py reads"

_WORDS: Sequence[tuple[str, str, bool]] = (
    ("character '\\t' that cannot start", "a tab indents this line; indent with spaces", False),
    ("cannot start any token", "a value begins with a character that YAML reserves; put the value in quotes", False),
    (
        "mapping values are not allowed here",
        "this line does not follow from the one above; put a space behind each colon, and indent alike what belongs "
        "together",
        False,
    ),
    (
        "while parsing a block",
        "this line is not indented as the lines above it; indent alike what belongs together",
        False,
    ),
    ("while parsing a flow mapping", "a { that opens on this line is not closed, or a comma is missing", True),
    ("while parsing a flow sequence", "a [ that opens on this line is not closed, or a comma is missing", True),
    ("while scanning a quoted scalar", "a quote that opens on this line is not closed", True),
    ("could not find expected ':'", "a key without a colon; write key: value", True),
    ("expected a single document", "a second document begins here; a config is one document, without ---", False),
)
"""What the parser says, what it means, and whether the place to look is where the construct opens."""


def in_words(error: MarkedYAMLError) -> tuple[int | None, str]:
    """Return the line to look at, counted from 1, or None, and what is wrong there."""
    found = f"{error.context or ''}, {error.problem or ''}"
    for phrase, words, opening in _WORDS:
        if phrase in found:
            mark = (error.context_mark if opening else None) or error.problem_mark or error.context_mark
            return (None if mark is None else mark.line + 1), words
    mark = error.problem_mark or error.context_mark
    what = ", ".join(part for part in (error.context, error.problem) if part)
    return (None if mark is None else mark.line + 1), what


class SettingsError(ConfigError):
    """Every problem of a config file and its environment, a line each."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = tuple(problems)


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """A file's settings."""

    path: Path
    values: dict[str, Any] = field(default_factory=dict)
    lines: dict[Key, int] = field(default_factory=dict)
    """The line of each key and list item, counted from 1."""


def read_yaml(path: Path) -> Document:
    """Read a file; every error names it, and the line where there is one."""
    try:
        with path.open("rb") as file:
            content = file.read(_MOST_BYTES + 1)
        if len(content) > _MOST_BYTES:
            raise ConfigError(f"{path} is larger than {_MOST_BYTES // 2**20} MiB; {_TOO_LARGE}")
        text = content.decode()
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise ConfigError(f"{path} cannot be read: {reason}; name the config file with -c FILE") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not UTF-8 text (byte {error.start}); save it as UTF-8") from None
    return _Reader(path).read(text)


class _TooManyError(Exception):
    """The file holds, or its aliases expand to, too many values."""


class _BoundedComposer(Composer):
    """Ends the parsing of a file with too many nodes, which takes ruamel minutes otherwise."""

    composed = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        self.composed += 1
        if self.composed > _MOST_VALUES:
            raise _TooManyError
        return super().compose_node(parent, index)


class _Reader:
    """Walks one file's nodes."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._yaml: Any = YAML(typ="safe", pure=True)
        self._yaml.Composer = _BoundedComposer
        self._values = 0
        self._lines: dict[Key, int] = {}
        self._problems: list[str] = []

    def read(self, text: str) -> Document:
        try:
            self._yaml.composer.warn_double_anchors = False
            try:
                root: Node | None = self._yaml.compose(text)
            except MarkedYAMLError as error:
                line, what = in_words(error)
                where = "" if line is None else f":{line}"
                raise ConfigError(f"{self._path}{where}: this is not YAML: {what}") from None
            except YAMLError:
                raise ConfigError(f"{self._path} is not YAML: it holds characters that YAML does not allow") from None
            values = {} if root is None else self._value(root, ())
        except RecursionError:
            raise ConfigError(f"{self._path} is nested without end; take out anchors that hold themselves") from None
        except _TooManyError:
            raise ConfigError(
                f"{self._path} holds more than {_MOST_VALUES:,} keys and values, its aliases written out; {_TOO_LARGE}"
            ) from None
        if values is None:
            values = {}
        if not isinstance(values, dict):
            self._problems.append(f"{self._path}:1: the file is not a mapping; write settings as in name: clicks")
        if self._problems:
            raise SettingsError(self._problems)
        return Document(path=self._path, values=values, lines=self._lines)

    def _value(self, node: Node, key: Key) -> Any:
        self._values += 1
        if self._values > _MOST_VALUES:
            raise _TooManyError
        if isinstance(node, MappingNode):
            return self._mapping(node, key)
        if isinstance(node, SequenceNode):
            for index, item in enumerate(node.value):
                self._lines[*key, index] = item.start_mark.line + 1
            return [self._value(item, (*key, index)) for index, item in enumerate(node.value)]
        kind = str(node.tag).removeprefix(_CORE)
        if kind in _AS_TEXT:
            return str(node.value)
        if kind in {"int", "float", "bool", "null"}:
            try:
                return getattr(self._yaml.constructor, f"construct_yaml_{kind}")(node)
            except (ValueError, KeyError, IndexError):
                self._complain(node.start_mark.line + 1, f"the tag {node.tag} does not fit its value; leave it out")
                return None
        self._complain(node.start_mark.line + 1, f"the tag {node.tag} is not one of YAML's core schema; leave it out")
        return None

    def _mapping(self, node: MappingNode, key: Key) -> dict[str, Any]:
        """Return a mapping's values, those that it merges from others first, so that its own replace them."""
        values: dict[str, Any] = {}
        own: dict[str, tuple[int, Node]] = {}
        for name_node, value_node in node.value:
            line = name_node.start_mark.line + 1
            if not isinstance(name_node, ScalarNode):
                self._complain(line, "a key is a list or a mapping; write a word")
            elif str(name_node.tag) == _MERGE:
                for source in reversed(self._merged(value_node, line)):
                    values |= self._value(source, key)
            else:
                name = str(name_node.value)
                if name in own:
                    text = f"{'.'.join(map(str, (*key, name)))} stands here a second time; keep one of them"
                    self._complain(line, text)
                own[name] = (line, value_node)
        for name, (line, value_node) in own.items():
            self._lines[*key, name] = line
            values[name] = self._value(value_node, (*key, name))
        return values

    def _merged(self, node: Node, line: int) -> list[MappingNode]:
        """Return the mappings that `<<` names, the one that counts most first."""
        sources = node.value if isinstance(node, SequenceNode) else [node]
        if all(isinstance(source, MappingNode) for source in sources):
            return list(sources)
        self._complain(line, "<< merges mappings; write an alias of one, as in <<: *other, or a list of them")
        return []

    def _complain(self, line: int, text: str) -> None:
        self._problems.append(f"{self._path}:{line}: {text}")
        if len(self._problems) >= _MOST_PROBLEMS:
            raise SettingsError(self._problems)
