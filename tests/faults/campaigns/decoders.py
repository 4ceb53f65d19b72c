"""The fuzzing of the formats: records of every format, changed at random, among neighbours and alone.

    python -m tests.faults.campaigns.decoders --cases 1000000

A case is a record of which a few bytes were changed, cut out, doubled or taken from another, so that no other case of
its process has the same bytes. It is decoded in a chunk of its own, in one with good records and other cases, and in
one with these cases only, in another order; it has to be decoded or set aside with the same outcome in all three. Alone
JSON and CSV are decoded by pyarrow, without the compiled code, which has to give the same bits. The good records have
to be decoded as they are alone too, and each record of a chunk has to be named once. A decoder that ends the process
ends the campaign, and so does one that takes more than a minute for a chunk. The processes share nothing; each draws
from the seed and its own number.
"""

import argparse
import json
import math
import os
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import chain
from multiprocessing import get_context
from pathlib import Path
from random import Random
from typing import Any

from millrace.app.settings.sections.records import RecordsSettings, to_decoder
from millrace.app.tools.child_process.die_with_parent import die_with_parent
from millrace.pipelines.formats import Decoder
from tests.faults.campaigns.formats import LEARNT
from tests.faults.harness.forms import Form, PoisonedStream
from tests.faults.harness.image_form import IMAGES
from tests.faults.harness.records import ExpectedPosition
from tests.pipelines.formats.compiled import without_compiled
from tests.pipelines.formats.decoder_conformance import Outcome, alone, outcomes, same
from tests.pipelines.formats.image.image_verdicts import PixelDecoder
from tests.pipelines.formats.verdicts import SUBJECTS

_SIZES = (1, 2, 3, 10, 50, 200, 1000)
_SHARES = (0.01, 0.02, 0.05, 0.3, 1.0)
_CHANGES = (1, 1, 1, 2, 3)
_POOL, _GOOD, _WITHIN_S, _AT_MOST = 2000, 200, 60, 20
_BITS = (
    *(b"{", b"}", b"[", b"]", b'"', b",", b":", b"\\", b"\n", b" ", b"\0", b"\t", b"\r", b";", b"}{", b'""', b'","'),
    *(b"null", b"true", b"NaN", b"Inf", b"-", b"0", b".5", b"e5", b"1e400", b"9" * 20, b"\xff", b"\xc3\xa9"),
    *(b"\xef\xbb\xbf", b'"y": 0', b'"id": "x"', b'"id": 1.5', b'"x": 7', b"\x12", b"\x1a", b"\n\x05", b"\x80"),
    *(b"\n\x80\x80\x80\x80\x08", b"\x12\x06\n\xff\xff\xff\xff\x0f", b"\xff\xff\xff\xff\x7f"),
)


@dataclass(slots=True, kw_only=True)
class FuzzedFormats:
    """The figures of a campaign."""

    seed: int
    processes: int = 1
    cases: int = 0
    """Changed records, each with bytes that no other of its process has."""
    set_aside: int = 0
    among: int = 0
    """Outcomes among neighbours that were compared: of cases, and of the good records beside them."""
    unlike: int = 0
    """Records that met another end among neighbours than alone."""
    told: list[str] = field(default_factory=list)
    by_form: dict[str, int] = field(default_factory=dict)
    """Cases by what decodes them."""
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    """Of all processes, from the first case on: on a busy machine this says how fast it is."""

    def add(self, other: "FuzzedFormats") -> None:
        """Add what another process has found."""
        self.cases += other.cases
        self.set_aside += other.set_aside
        self.among += other.among
        self.unlike += other.unlike
        self.told += other.told
        self.cpu_seconds = round(self.cpu_seconds + other.cpu_seconds, 1)
        self.by_form = dict(Counter(self.by_form) + Counter(other.by_form))


@dataclass(slots=True)
class _Deck:
    """A decoder, and the records that chunks for it are drawn from."""

    name: str
    decoder: Decoder
    judge: Decoder
    """What decodes a record alone."""
    good: Sequence[tuple[bytes, Outcome]]
    """Records that can be learnt, each with its outcome alone."""
    pool: Sequence[bytes]
    """What is changed: good records and bad ones."""
    seen: set[int]
    """Hashes of the pool, and of all cases so far."""


def fuzz_formats(cases: int, seed: int, processes: int = 1, minutes: float = math.inf) -> FuzzedFormats:
    """Decode at least so many changed records, of all formats in turns, or fewer where the minutes are over before.

    Works in this process where one is asked for.
    """
    began, figures = time.monotonic(), FuzzedFormats(seed=seed, processes=processes)
    fuzz = partial(_fuzz_some, -(-cases // processes), began + minutes * 60, seed)
    if processes == 1:
        figures.add(fuzz(0))
    else:
        with ProcessPoolExecutor(processes, mp_context=get_context("spawn"), initializer=die_with_parent) as pool:
            for found in pool.map(fuzz, range(processes)):
                figures.add(found)
    figures.seconds = round(time.monotonic() - began, 1)
    return figures


def _fuzz_some(cases: int, until: float, seed: int, number: int) -> FuzzedFormats:
    figures, random = FuzzedFormats(seed=seed), Random(f"{seed} {number}")
    with tempfile.TemporaryDirectory(prefix="fuzz-formats-") as folder:
        decks = [*_decks(Path(folder))]
        began = time.process_time()
        while figures.cases < cases and time.monotonic() < until:
            for deck in decks:
                signal.setitimer(signal.ITIMER_PROF, _WITHIN_S)  # of the CPU, however busy the machine is
                _fuzz_chunk(deck, random, figures)
    signal.setitimer(signal.ITIMER_PROF, 0)
    figures.cpu_seconds = time.process_time() - began
    return figures


def _decks(folder: Path) -> Iterator[_Deck]:
    """Yield a deck for each form of the campaigns, and one for each decoder of the conformance suite."""
    for form in LEARNT.values():
        yield _deck(f"{form.name}, as learnt", decoder_of(form, folder), _records(form, 0.0), _records(form, 0.2))
    for subject in SUBJECTS:
        good = [case.value for case in subject.cases if case.value and isinstance(case.outcome, dict)]
        yield _deck(subject.name, subject.decoder, good, [value for value in subject.values if value])


def _deck(name: str, decoder: Decoder, good: Sequence[bytes], pool: Sequence[bytes]) -> _Deck:
    some, judge = good[:_GOOD], without_compiled(decoder)
    judged = [*zip(some, alone(judge, some), strict=True)]
    return _Deck(name, decoder, judge, judged, pool, {*map(hash, chain(good, pool))})


def decoder_of(form: Form, folder: Path) -> Decoder:
    """Return the decoder of a form, as its config makes it, with the form's files in a folder."""
    for name, text in form.files.items():
        (folder / name).write_text(text)
    kind = form.records["format"]
    files = {f"./{name}": str(folder / name) for name in form.files}
    there = {
        key: files.get(value, value) for key, value in form.records.get(kind, {}).items() if isinstance(value, str)
    }
    changed: Mapping[str, Any] = {**form.records, kind: {**form.records[kind], **there}} if there else form.records
    decoder = to_decoder(RecordsSettings.model_validate(changed))
    return PixelDecoder(decoder) if form is IMAGES else decoder


def _records(form: Form, share: float) -> list[bytes]:
    stream, random = PoisonedStream(form, share), Random(7)
    return [stream.draw(ExpectedPosition(0, at), random)[0] or b"" for at in range(_POOL)]


def _changed(record: bytes, pool: Sequence[bytes], random: Random) -> bytes:
    value = bytearray(record)
    for _ in range(random.choice(_CHANGES)):
        at = random.randint(0, len(value))
        end = min(len(value), at + random.randint(0, 8))
        value[at:end] = _instead(bytes(value[at:end]), pool, random)
    return bytes(value)


def _instead(part: bytes, pool: Sequence[bytes], random: Random) -> bytes:
    """Return what a part of a record is replaced with."""
    match random.randrange(7):
        case 0:
            new = b""
        case 1:
            new = random.choice(_BITS)
        case 2:
            new = random.randbytes(2)
        case 3:
            new = part * 2
        case 4:  # as many bytes, so that what has a fixed length or states its length is still whole
            new = random.randbytes(len(part))
        case 5:  # as many, and one bit differs
            new = part and bytes([part[0] ^ 1 << random.randrange(8)]) + part[1:]
        case _:
            other = random.choice(pool)
            start = random.randint(0, len(other))
            new = other[start : start + 12]
    return new


def _fuzz_chunk(deck: _Deck, random: Random, figures: FuzzedFormats) -> None:
    """Decode cases, each alone, then among good records, then in another order without these."""
    size, share = random.choice(_SIZES), random.choice(_SHARES)
    drawn = sum(random.random() < share for _ in range(size))
    values = [_changed(random.choice(deck.pool), deck.pool, random) for _ in range(drawn)]
    fresh = [value for value in {hash(value): value for value in values}.values() if hash(value) not in deck.seen]
    cases = [*zip(fresh, alone(deck.judge, fresh), strict=True)]
    deck.seen.update(map(hash, fresh))
    figures.cases += len(cases)
    figures.set_aside += sum(isinstance(outcome, tuple) for _, outcome in cases)
    figures.by_form[deck.name] = figures.by_form.get(deck.name, 0) + len(cases)
    for among in (size - drawn, 0):
        chunk = cases + random.choices(deck.good, k=among)
        random.shuffle(chunk)
        _compare(deck, chunk, figures)


def _compare(deck: _Deck, chunk: Sequence[tuple[bytes, Outcome]], figures: FuzzedFormats) -> None:
    figures.among += len(chunk)
    for (value, expected), found in zip(chunk, outcomes(deck.decoder, [value for value, _ in chunk]), strict=True):
        if not same(found, expected):
            figures.unlike += 1
            if len(figures.told) < _AT_MOST:
                figures.told.append(f"{deck.name}: {value!r}: {found} among neighbours, {expected} alone")


def main() -> None:
    """Read the options, fuzz, print."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # it warns of each image that is none
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--minutes", type=float, default=math.inf, help="stop then, with fewer cases")
    given = parser.parse_args()
    found = fuzz_formats(given.cases, given.seed, given.processes, given.minutes)
    sys.stdout.write(f"{json.dumps(asdict(found), indent=1)}\n")
    sys.exit(int(found.unlike > 0))


if __name__ == "__main__":
    main()
