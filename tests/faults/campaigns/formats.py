"""Every format with poison of many kinds: what becomes of each record is compared with what must become of it.

    python -m tests.faults.campaigns.formats --records 1000000 --forms json,csv

A trainer learns a topic of one format, of which one record in a hundred is bad in one of some twenty ways. Afterwards
the ids that the model has added up have to be those of the good records, the account of every offset has to add up, and
each dead letter has to name the record and the reason that its writer has written down.
"""

import argparse
import json
import sys
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from millrace.app.tools.local_broker.topics import create_topic
from millrace.app.tools.prove.trainer_process import PATIENCE_S
from millrace.consumers.dead_letters.reader import newest_letters
from millrace.consumers.kafka.options import KafkaOptions
from tests.faults.campaigns.kills import broker
from tests.faults.harness.forms import FORMS, Form, PoisonedStream
from tests.faults.harness.image_form import IMAGES
from tests.faults.harness.process import Run
from tests.faults.harness.project import Project
from tests.faults.harness.shelf import Shelf, Statement
from tests.faults.harness.topics import Topic

PARTITIONS = 4
LEARNT = {**FORMS, IMAGES.name: IMAGES}
"""The forms of the campaign, by name."""
_SHARE = 0.01
_AT_MOST = 20
_AT_ONCE = 20_000
"""Records of a partition that are written in one go: each go has a time limit."""
_RECORDS_PER_S = 1000
"""What a trainer learns at the very least, also on a busy machine."""


@dataclass(slots=True, kw_only=True)
class FormatFigures:
    """What a campaign comes to."""

    seed: int
    records: int = 0
    learnt: int = 0
    """Records that the model has added up, by its own sums."""
    set_aside: int = 0
    skipped: int = 0
    by_reason: dict[str, int] = field(default_factory=dict)
    """Records that the trainer has set aside, by reason."""
    kinds: int = 0
    """Kinds of poison, over all formats."""
    unaccounted: int = 0
    """Records that met another verdict than theirs, or none, or that the model has not learnt once."""
    told: list[str] = field(default_factory=list)
    """Some of these, each with what was wrong with it."""
    seconds: float = 0.0

    @property
    def kept(self) -> bool:
        """Whether the promise held."""
        return self.records > 0 and self.unaccounted == 0

    def summary(self) -> dict[str, Any]:
        """Return the figures as the report holds them."""
        return {**asdict(self), "seconds": round(self.seconds, 1), "kept": self.kept}


def account_for(
    bootstrap: str,
    folder: Path,
    *,
    records: int,
    seed: int,
    forms: Iterable[Form] = tuple(LEARNT.values()),
    share: float = _SHARE,
) -> FormatFigures:
    """Learn so many records of each format, this share of them bad, and compare what became of them."""
    began, figures = time.monotonic(), FormatFigures(seed=seed)
    for form in forms:
        _account_for_one(bootstrap, folder / form.name, form, records, figures, share)
    figures.seconds = time.monotonic() - began
    return figures


def _account_for_one(
    bootstrap: str, folder: Path, form: Form, records: int, figures: FormatFigures, share: float
) -> None:
    stream = PoisonedStream(form, share)
    name = f"formats-{uuid.uuid4().hex[:8]}"
    letters = f"{name}-letters"
    create_topic(bootstrap, letters, 1)
    with Topic(bootstrap, name, PARTITIONS, stream, figures.seed) as topic:
        each = records // PARTITIONS
        for start in range(0, each, _AT_ONCE):
            topic.write(min(_AT_ONCE, each - start))
        folder.mkdir(parents=True)
        for file, text in form.files.items():
            (folder / file).write_text(text)
        section = {**form.records, "dead_letters": {"topic": letters}}
        project = Project(folder, topic, records=section, model={"build": form.build})
        end = ",".join(f"{topic.name}:{number}={len(one)}" for number, one in enumerate(topic.verdicts))
        with Run(project, "--until", end) as run:
            run.finish(PATIENCE_S + records / _RECORDS_PER_S)
        newest = Shelf(project.folder).newest()
        assert newest is not None
        figures.records += topic.records
        figures.kinds += len(set(stream.kinds.values()))
        for number in range(PARTITIONS):
            _compare_account(form.name, number, topic, newest, figures)
        _compare_letters(
            KafkaOptions(bootstrap_servers=(bootstrap,), topics=(letters,), group_id=name), topic, stream, figures
        )


def _compare_account(name: str, number: int, topic: Topic, newest: Statement, figures: FormatFigures) -> None:
    """Compare what the model and the ledger hold of a partition with what was written to it."""
    ids, account = list(topic.learnable(number)), newest.ledger[number]
    learnt = (len(ids), sum(ids), sum(i * i for i in ids))
    figures.learnt += newest.ids[number][0]
    figures.skipped += sum(account.skipped.values())
    figures.by_reason = dict(Counter(figures.by_reason) + Counter(map(str, Counter(account.set_aside).elements())))
    if newest.ids[number] != learnt or newest.seen[number] != topic.evidence(number):
        figures.unaccounted += max(1, abs(newest.ids[number][0] - len(ids)))
        figures.told.append(f"{name}: partition {number}: learnt {newest.ids[number]} instead of {learnt}")
    if Counter(account.set_aside) != topic.set_aside(number):
        figures.unaccounted += 1
        figures.told.append(f"{name}: partition {number}: {account.set_aside}, {topic.set_aside(number)}")
    produced = len(topic.verdicts[number])
    if not account.balanced or not account.settled == account.records == produced:
        figures.unaccounted += 1
        figures.told.append(f"{name}: partition {number}: {account} does not add up to {produced} records")


def _compare_letters(options: KafkaOptions, topic: Topic, stream: PoisonedStream, figures: FormatFigures) -> None:
    """Compare each letter with the verdict that the record's writer has written down."""
    due = {
        (number, offset): str(verdict)
        for number, verdicts in enumerate(topic.verdicts)
        for offset, verdict in enumerate(verdicts)
        if verdict is not None
    }
    found = Counter[tuple[int, int, str]]()
    for letter in newest_letters(options, len(due) + 1000).newest:
        found[int(letter.ours["partition"]), int(letter.ours["offset"]), letter.ours["reason"]] += 1
    wanted = Counter((*place, reason) for place, reason in due.items())
    figures.set_aside += len(due)
    for number, offset, reason in sorted((found - wanted) + (wanted - found)):
        figures.unaccounted += 1
        if len(figures.told) < _AT_MOST:
            kind, verdict = stream.kinds.get((number, offset), "a good record"), due.get((number, offset))
            figures.told.append(f"{stream.form.name}: {kind}: {reason}, and {verdict} is due")


def main() -> None:
    """Read the options, learn, print."""
    parser = argparse.ArgumentParser(description="Learn records of every format, some of them bad.")
    parser.add_argument("--records", type=int, default=1_000_000, help="of each format")
    parser.add_argument("--forms", help="some of the formats, with commas between them")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="draws the records")
    parser.add_argument("--bootstrap", help="a broker, host:port; without it one is started")
    options = parser.parse_args()
    forms = [LEARNT[name] for name in options.forms.split(",")] if options.forms else LEARNT.values()
    with (
        tempfile.TemporaryDirectory(prefix="millrace-formats-") as folder,
        broker(options.bootstrap, Path(folder)) as bootstrap,
    ):
        found = account_for(bootstrap, Path(folder), records=options.records, seed=options.seed, forms=forms)
    print(json.dumps(found.summary(), indent=1))  # noqa: T201 - what the command is for
    sys.exit(int(not found.kept))


if __name__ == "__main__":
    main()
