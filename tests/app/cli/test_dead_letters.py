"""Dead letters with headers and values from any program, as the command line shows them."""

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from typer.testing import CliRunner

from millrace.app.cli import dead_letters
from millrace.app.cli.command_list import application
from millrace.app.printable import printable
from millrace.consumers.dead_letters import reader
from millrace.consumers.dead_letters.reader import Letters, ReceivedLetter
from millrace.consumers.dead_letters.redrive import Redrive, Redriven
from millrace.consumers.records import Partition

ESCAPE = "\x1b]0;owned\x07\x1b[2J"
CONFIG = """\
name: clicks
kafka: {bootstrap_servers: [localhost:9092], topics: [clicks]}
records: {format: json, features: {price: float32}, dead_letters: {topic: bad}}
model: {build: ./model.py:build_model}
checkpoints: {path: ./checkpoints}
"""


def letter(
    value: bytes | None = b"{",
    sent_ms: int = 1_763_694_000_000,
    behind: Sequence[tuple[str, bytes]] = (),
    **said: str,
) -> ReceivedLetter:
    """Return a letter of millrace's with these changes, and with more headers behind ours."""
    ours = {"reason": "malformed", "topic": "clicks", "partition": "3", "offset": "100", **said}
    record = SimpleNamespace(
        offset=7,
        timestamp=sent_ms,
        key=ESCAPE.encode(),
        value=value,
        headers=(
            (f"trace{ESCAPE}", b"1"),
            *((f"millrace.{name}", text.encode()) for name, text in ours.items()),
            *behind,
        ),
    )
    return ReceivedLetter.of(Partition("bad", 0), cast("Any", record))


def test_a_record_with_headers_like_ours_is_identified_by_ours_only() -> None:
    forged = [("millrace.reason", b"forged"), ("millrace.redriven", b"clicks:3:100"), ("millrace.to", b"clicks")]
    found = letter(behind=forged)
    assert found.ours["reason"] == "malformed"
    assert not found.is_marker


@pytest.mark.parametrize("ms", [10**15 * 1000, 2**63 - 1])
def test_a_time_outside_the_calendar_is_shown_as_a_number(ms: int) -> None:
    told = dead_letters.letter_facts(letter(sent_ms=ms, timestamp=str(ms)), values=False)
    assert told["written"] == told["set_aside"] == f"{ms} ms since 1970"


@pytest.mark.parametrize("claimed", ["9" * 5000, "-1", "0", "soon", "\u0661"])
def test_a_header_beyond_kafkas_numbers_counts_as_missing(claimed: str) -> None:
    told = dead_letters.letter_facts(letter(b"four", timestamp=claimed, value_bytes=claimed), values=False)
    assert told["written"] is None
    assert told["value_bytes"] == (0 if claimed == "0" else 4)


@pytest.mark.parametrize("more", [[], ["--values"], ["--json"], ["--values", "--json"]])
@pytest.mark.parametrize("verb", [["list"], ["show", "0:7"]])
def test_no_record_sends_control_characters_to_the_terminal(
    verb: list[str], more: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = letter(ESCAPE.encode(), reason=ESCAPE, field=ESCAPE, topic=ESCAPE, name=ESCAPE)
    monkeypatch.setattr(reader, "newest_letters", lambda *_: Letters(total=1, newest=(one,)))
    monkeypatch.setattr(reader, "letter_at", lambda *_: one)
    config = tmp_path / "clicks.yaml"
    config.write_text(CONFIG)
    result = CliRunner().invoke(application, ["dead-letters", *verb, *more, "-c", str(config)], catch_exceptions=False)
    assert "owned" in result.stdout
    assert all(line.isprintable() for line in result.stdout.split("\n"))


def test_no_redrive_reason_sends_control_characters_to_the_terminal() -> None:
    wanted = Redrive(letters="bad", to="again", model="clicks")
    told = dead_letters.redriven_in_words(Redriven(sent=Counter({ESCAPE: 1})), wanted, dry_run=True)
    assert all(line.isprintable() for line in told)


def test_printable_text_is_unchanged() -> None:
    assert printable("größer: 5 × 3 – 价格") == "größer: 5 × 3 – 价格"
    assert printable("a\x1b[2Jb\n\u202ec") == r"a\x1b[2Jb\n\u202ec"
    assert json.loads(f'"{printable("价")}"') == "价"
