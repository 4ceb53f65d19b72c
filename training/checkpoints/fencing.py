"""Terms: which writer wrote when, and which checkpoints are fenced because a later writer had begun.

Owns `terms/<number>.json`, one sealed record a term. Only the writer of the term writes it, once, so a process that was
stopped in the middle of a write can never overwrite what a later one wrote. Runs on any thread.

The fence: a checkpoint is never loaded when a greater term had begun before it was published, that is, when a record of
a greater term says that its writer began after a smaller number.

A record also holds what the earlier ones say, so that these can be removed and restarts do not fill the volume. The one
before it stays, as a second copy. Nothing is removed before the record that holds it is durable, and only what its
writer has read, so a kill in between leaves the same facts twice.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from millrace.consumers.durable_files import replace_durably, sync_folder
from millrace.consumers.failpoints import failpoint
from millrace.consumers.suggested_command import suggested_command
from millrace.training.checkpoints.folder import Folder
from millrace.training.checkpoints.sealed_json import seal, unseal
from millrace.training.errors import CorruptError

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
    floor: int = NOTHING
    """Numbers up to this one may have been given on a volume that is lost, and are not given again; -1 for none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What all records of a folder say."""

    records: Sequence[TermRecord]
    """The terms whose fence no other has, ascending; those that only a later record holds have no holder."""
    published: int = NOTHING
    """A number that had been published for certain; -1 where none is known."""
    floor: int = NOTHING
    """Numbers up to this one are not given again, whether or not they were published; -1 for none."""
    files: Sequence[int] = ()
    """The terms that have a record of their own on disk, ascending."""

    @classmethod
    def read(cls, folder: Folder) -> "Terms":
        """Read every record; CorruptError for one that is damaged, because what it fences is then unknown."""
        listed = list[int]()
        while True:
            before, listed = listed, folder.recorded_terms()
            read = {term: _read(folder, term) for term in listed}
            # A record that was removed meanwhile is held by a newer one, which the list may not have had yet.
            if all(read.values()) or listed == before:
                return cls.of({term: held for term, held in read.items() if held is not None})

    @classmethod
    def of(cls, files: Mapping[int, Sequence[TermRecord]]) -> "Terms":
        """Return what these files say together."""
        records = [record for held in files.values() for record in held]
        return cls(
            records=_fencing(records),
            published=max([NOTHING, *(record.began_after for record in records)]),
            floor=max([NOTHING, *(record.floor for record in records)]),
            files=sorted(files),
        )

    def fences(self, term: int, number: int) -> bool:
        """Return whether this term published this number after a greater term had begun."""
        return any(record.term > term and number > record.began_after for record in self.records)


def begin(folder: Folder, term: int, holder: Mapping[str, Any], floor: int = NOTHING) -> TermRecord:
    """Record that a term, already claimed by its lock, has begun. Checkpoints of smaller terms are fenced from now on.

    Numbers up to `floor` are not given again.

    The claim comes first: a smaller term that publishes later finds itself passed, and what it published before the
    claim is among the numbers that are read here.
    """
    terms = Terms.read(folder)
    began_after = max([terms.published, *folder.numbers()])
    floor = max(floor, terms.floor)
    record = TermRecord(term=term, began_after=began_after, holder=holder, floor=floor)
    earlier = [one for one in _fencing([*terms.records, record]) if one.term < term]
    body = {"format": 1, "term": term, "began_after": began_after, "holder": dict(holder)}
    if floor != NOTHING:
        body["floor"] = floor
    if earlier:
        body["earlier"] = {str(one.term): one.began_after for one in earlier}
    failpoint("term.before_record")
    replace_durably(folder.term(term), seal(body))
    failpoint("term.after_record")
    # Remove the records that the newest one holds, all but the last of them.
    held = [older for older in terms.files if older < term][:-1]
    for older in held:
        folder.term(older).unlink(missing_ok=True)
    if held:
        sync_folder(folder.terms)
    return record


def _fencing(records: Iterable[TermRecord]) -> list[TermRecord]:
    """Return the records whose fence no other has, in the order of their terms.

    A greater term that began after the same number, or a smaller one, fences whatever the record fences.
    """
    kept = list[TermRecord]()
    # Of two with the same term and number, one is the writer's own record, which names its holder.
    for record in sorted(records, key=lambda one: (-one.term, one.began_after, not one.holder)):
        if not kept or record.began_after < kept[-1].began_after:
            kept.append(record)
    return kept[::-1]


def _read(folder: Folder, term: int) -> Sequence[TermRecord] | None:
    """Return what the record of a term says of it and of earlier ones; None where there is none."""
    path = folder.term(term)
    try:
        body = unseal(path.read_bytes())
        record = TermRecord(
            term=body["term"],
            began_after=body["began_after"],
            holder=body["holder"],
            floor=body.get("floor", NOTHING),
        )
        earlier = [
            TermRecord(term=int(number), began_after=began_after, holder={})
            for number, began_after in body.get("earlier", {}).items()
        ]
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
    return [*earlier, record]
