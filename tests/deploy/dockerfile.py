"""The Dockerfile as data: its stages, and in each what it copies, runs and sets."""

import json
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """One `FROM … AS …`, with what it takes over from the stage before it."""

    name: str
    origin: str
    """What stands after FROM: an image, or another stage."""
    steps: list[tuple[str, str]] = field(default_factory=list)
    """Each instruction with its text, those of the origin's stage first."""

    def texts(self, instruction: str) -> list[str]:
        """Return the text after each instruction of a kind."""
        return [text for name, text in self.steps if name == instruction]

    def words(self, instruction: str) -> list[str]:
        """Return the words of the last instruction of a kind, in its exec form."""
        found: list[str] = json.loads(self.texts(instruction)[-1])
        return found

    def pairs(self, instruction: str) -> dict[str, str]:
        """Return all `name=value` of a kind of instruction."""
        given = [pair for text in self.texts(instruction) for pair in shlex.split(text)]
        return dict(pair.split("=", 1) for pair in given)

    def copied(self) -> Iterator[str]:
        """Yield what it copies from the context, not from another stage."""
        for text in self.texts("COPY"):
            words = shlex.split(text)
            if not any(word.startswith("--from") for word in words):
                yield from words[:-1]


def stages_of(path: Path) -> dict[str, Stage]:
    """Return all stages by name, in their order."""
    stages: dict[str, Stage] = {}
    last: Stage | None = None
    for name, text in parsed(path):
        if name == "FROM":
            origin, stage = re.fullmatch(r"(\S+) AS (\S+)", text).groups()  # type: ignore[union-attr]  # a test fails
            inherited = stages[origin].steps if origin in stages else []
            last = stages[stage] = Stage(name=stage, origin=origin, steps=[*inherited])
        elif last is not None:
            last.steps.append((name, text))
    return stages


def arguments_of(path: Path) -> dict[str, str]:
    """Return the `ARG`s before the first stage."""
    given = [text for name, text in parsed(path) if name == "ARG"]
    return dict(text.split("=", 1) for text in given)


def parsed(path: Path) -> Iterator[tuple[str, str]]:
    """Yield each instruction with its text, on one line."""
    lines = "\n".join(line for line in path.read_text().splitlines() if not line.lstrip().startswith("#"))
    for line in re.sub(r"\\\n\s*", " ", lines).splitlines():
        if line.strip():
            name, rest = line.split(maxsplit=1)
            yield name, " ".join(rest.split())
