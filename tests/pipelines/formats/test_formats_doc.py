"""The verdicts in the docs are those that the decoders are tested by."""

from pathlib import Path

import pytest

from millrace.consumers.reasons import Reason
from tests.pipelines.formats.decoder_conformance import Conformance
from tests.pipelines.formats.verdicts import SUBJECTS, page

DOCS = Path(__file__).parents[3] / "docs"


def test_the_page_holds_every_verdict_and_no_other() -> None:
    assert (DOCS / "verdicts.md").read_text(encoding="utf-8") == page()


@pytest.mark.parametrize("subject", SUBJECTS, ids=lambda subject: subject.name)
def test_the_section_of_a_format_leads_to_its_verdicts(subject: Conformance) -> None:
    formats = (DOCS / "formats.md").read_text(encoding="utf-8")
    section = formats.partition(f"\n## {subject.name}\n")[2].partition("\n## ")[0]
    assert f"(verdicts.md#{subject.name.replace(' ', '-')})" in section


def test_the_table_shows_every_reason_that_a_decoder_gives() -> None:
    shown = {case.outcome[0] for subject in SUBJECTS for case in subject.cases if isinstance(case.outcome, tuple)}
    assert shown == set(Reason) - {Reason.CLASS_LIMIT, Reason.UPDATE_NOT_FINITE, Reason.STEP_RAISED}
