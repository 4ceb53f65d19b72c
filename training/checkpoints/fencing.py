"""Terms: which writer wrote when, and which checkpoints are fenced because a later writer had begun.

Owns `terms/<number>.json`, one sealed record a term. Only the writer of the term writes it, once, so a process that was
stopped in the middle of a write can never overwrite what a later one wrote. Runs on any thread.

The fence: a checkpoint is never loaded when a greater term had begun before it was published, that is, when a record of
a greater term says that its writer began after a smaller number.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from consumers.suggested_command import suggested_command
from training.checkpoints.files import replace_durably, sync_folder
from training.checkpoints.folder import Folder
from training.checkpoints.sealed_json import seal, unseal
from training.errors import CorruptError

NOTHING = -1
"""`began_after` where nothing had been published."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TermRecord:
    """One term: a writer has claimed it and knows what was there before it."""

    term: int
    began_after: int
    """The highest number, of any kind, that was published before; -1 for none."""
    holder: Mapping[str, Any]
    """Process, host, since when: for people."""


@dataclass(frozen=True, slots=True)
class Terms:
    """All records of a folder."""

    records: Sequence[TermRecord]

    @classmethod
    def read(cls, folder: Folder) -> "Terms":
        """Read every record; CorruptError for one that is damaged, because what it fences is then unknown."""
        records = (_read(folder, term) for term in folder.recorded_terms())
        return cls([record for record in records if record is not None])

    @property
    def published(self) -> int:
        """A number that had been published for certain; -1 where none is known."""
        return max([NOTHING, *(record.began_after for record in self.records)])

    def fences(self, term: int, number: int) -> bool:
        """Return whether this term published this number after a greater term had begun."""
        return any(record.term > term and number > record.began_after for record in self.records)


def begin(folder: Folder, term: int, holder: Mapping[str, Any]) -> TermRecord:
    """Record that a term, already claimed by its lock, has begun. Checkpoints of smaller terms are fenced from now on.

    The claim comes first: a smaller term that publishes later finds itself passed, and what it published before the
    claim is among the numbers that are read here.
    """
    terms = Terms.read(folder)
    began_after = max([terms.published, *folder.numbers()])
    record = TermRecord(term=term, began_after=began_after, holder=holder)
    body = {"format": 1, "term": term, "began_after": began_after, "holder": dict(holder)}
    replace_durably(folder.term(term), seal(body))
    # After the new record is durable, because it has to fence what the removed ones fence.
    _forget_barren(folder, terms, record)
    return record


def _forget_barren(folder: Folder, terms: Terms, begun: TermRecord) -> None:
    """Remove records of smaller terms that published nothing: the term that has begun fences what they fence."""
    older = (record for record in terms.records if record.term < begun.term)
    barren = [record.term for record in older if record.began_after == begun.began_after]
    for term in barren:
        folder.term(term).unlink(missing_ok=True)
    if barren:
        sync_folder(folder.terms)


def _read(folder: Folder, term: int) -> TermRecord | None:
    path = folder.term(term)
    try:
        body = unseal(path.read_bytes())
        record = TermRecord(term=body["term"], began_after=body["began_after"], holder=body["holder"])
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError) as error:
        raise CorruptError(
            f"{path} is not what was written ({error}), so it is unknown which checkpoints are fenced: bring it back "
            f"from a copy, or remove it once no other trainer runs and `{suggested_command('checkpoints', 'list')}` "
            "shows what you expect"
        ) from error
    if record.term != term:
        raise CorruptError(f"{path} is the record of term {record.term}: bring the right one back from a copy")
    return record
