"""The table of verdicts in the docs is the one that the decoders are tested by."""

from pathlib import Path

import pytest

from consumers.reasons import Reason
from tests.pipelines.decoder_conformance import Case, Conformance
from tests.pipelines.verdicts import SUBJECTS

FORMATS_MD = Path(__file__).parents[2] / "docs" / "formats.md"


def line(case: Case) -> str:
    verdict = "kept" if isinstance(case.outcome, dict) else f"`{case.outcome[0]}`"
    return f"| {case.what} | {verdict} |"


@pytest.mark.parametrize("subject", SUBJECTS, ids=lambda subject: subject.name)
def test_the_docs_hold_every_verdict_and_no_other(subject: Conformance) -> None:
    _, _, section = FORMATS_MD.read_text(encoding="utf-8").partition(f"\n## {subject.name}\n")
    section = section.partition("\n## ")[0]
    said = [row for row in section.splitlines() if row.startswith("|")][2:]
    assert said == [line(case) for case in subject.cases]


def test_the_table_shows_every_reason_that_a_decoder_gives() -> None:
    shown = {case.outcome[0] for subject in SUBJECTS for case in subject.cases if isinstance(case.outcome, tuple)}
    assert shown == set(Reason) - {Reason.UPDATE_NOT_FINITE, Reason.STEP_RAISED}
