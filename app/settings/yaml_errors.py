"""Says in a config author's words what the YAML parser found, and on which line to look. Pure.

What the parser's error quotes of the file is left out, because it may hold a secret.
"""

from collections.abc import Sequence

from ruamel.yaml.error import MarkedYAMLError

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
