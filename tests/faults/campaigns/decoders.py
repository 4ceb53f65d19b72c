"""The fuzzing of the formats: records of every format, changed at random, among neighbours and alone.

    python -m tests.faults.campaigns.decoders --cases 1000000

A case is a record of which a few bytes were changed, cut out, doubled or taken from another. It has to be decoded or
set aside among any neighbours as it is in a chunk of its own, and each record of a chunk has to be named once. A
decoder that ends the process ends the campaign too, and so does one that takes more than a minute for a chunk.
"""

import argparse
import json
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from app.settings.sections.records import RecordsSettings, to_decoder
from pipelines.decoders import Decoder
from tests.faults.harness.forms import FORMS, Form, PoisonedStream
from tests.faults.harness.records import ExpectedPosition
from tests.pipelines.decoder_conformance import alone, outcomes, same

_SIZES = (1, 2, 3, 10, 50, 200, 1000)
_SHARES = (0.01, 0.02, 0.05, 0.3, 1.0)
_POOL, _WITHIN_S, _AT_MOST = 2000, 60, 20
_BITS = (
    *(b"{", b"}", b"[", b"]", b'"', b",", b":", b"\\", b"\n", b" ", b"\0", b"\t", b"\r", b";", b"}{", b'""', b'","'),
    *(b"null", b"true", b"NaN", b"Inf", b"-", b"0", b".5", b"e5", b"1e400", b"9" * 20, b"\xff", b"\xc3\xa9"),
    *(b"\xef\xbb\xbf", b'"y": 0', b'"id": "x"', b'"id": 1.5', b'"x": 7', b"\x12", b"\x1a", b"\n\x05", b"\x80"),
    *(b"\n\x80\x80\x80\x80\x08", b"\x12\x06\n\xff\xff\xff\xff\x0f", b"\xff\xff\xff\xff\x7f"),
)


@dataclass(slots=True, kw_only=True)
class FuzzedFormats:
    """What came of it."""

    seed: int
    cases: int = 0
    set_aside: int = 0
    unlike: int = 0
    """Cases that met another end among neighbours than alone."""
    told: list[str] = field(default_factory=list)
    seconds: float = 0.0


def fuzz_formats(cases: int, seed: int) -> FuzzedFormats:
    """Decode at least so many changed records, of all formats in turns."""
    began, figures, random = time.monotonic(), FuzzedFormats(seed=seed), Random(seed)
    with tempfile.TemporaryDirectory(prefix="fuzz-formats-") as folder:
        decks = [(form, _decoder(form, Path(folder)), _pool(form, 0.0), _pool(form, 0.5)) for form in FORMS.values()]
        while figures.cases < cases:
            for form, decoder, good, pool in decks:
                signal.alarm(_WITHIN_S)
                _fuzz_chunk(form.name, decoder, _chunk(good, pool, random), figures)
    signal.alarm(0)
    figures.seconds = round(time.monotonic() - began, 1)
    return figures


def _decoder(form: Form, folder: Path) -> Decoder:
    for name, text in form.files.items():
        (folder / name).write_text(text)
    kind = form.records["format"]
    files = {f"./{name}": str(folder / name) for name in form.files}
    there = {
        key: files.get(value, value) for key, value in form.records.get(kind, {}).items() if isinstance(value, str)
    }
    changed: dict[str, Any] = {**form.records, kind: {**form.records[kind], **there}} if there else {**form.records}
    return to_decoder(RecordsSettings.model_validate(changed))


def _pool(form: Form, share: float) -> list[bytes]:
    stream, random = PoisonedStream(form, share), Random(7)
    return [stream.draw(ExpectedPosition(0, at), random)[0] or b"" for at in range(_POOL)]


def _chunk(good: Sequence[bytes], pool: Sequence[bytes], random: Random) -> list[tuple[bytes, bool]]:
    """Return records, each with whether it is a case."""
    share = random.choice(_SHARES)
    drawn = [random.random() < share for _ in range(random.choice(_SIZES))]
    return [(_changed(random.choice(pool), pool, random) if case else random.choice(good), case) for case in drawn]


def _changed(record: bytes, pool: Sequence[bytes], random: Random) -> bytes:
    value = bytearray(record)
    for _ in range(random.randint(1, 3)):
        at = random.randint(0, len(value))
        end = min(len(value), at + random.randint(0, 8))
        other = random.choice(pool)
        start = random.randint(0, len(other))
        value[at:end] = random.choice(
            (b"", random.choice(_BITS), random.randbytes(2), bytes(value[at:end]) * 2, other[start : start + 12])
        )
    return bytes(value)


def _fuzz_chunk(name: str, decoder: Decoder, chunk: Sequence[tuple[bytes, bool]], figures: FuzzedFormats) -> None:
    among = outcomes(decoder, [value for value, _ in chunk])
    cases = [(value, found) for (value, case), found in zip(chunk, among, strict=True) if case]
    apart = alone(decoder, [value for value, _ in cases])
    for (value, found), expected in zip(cases, apart, strict=True):
        figures.cases += 1
        figures.set_aside += isinstance(found, tuple)
        if not same(found, expected):
            figures.unlike += 1
            if len(figures.told) < _AT_MOST:
                figures.told.append(f"{name}: {value!r}: {found} among neighbours, {expected} alone")


def main() -> None:
    """Read the options, fuzz, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    given = parser.parse_args()
    found = fuzz_formats(given.cases, given.seed)
    sys.stdout.write(f"{json.dumps(asdict(found), indent=1)}\n")
    sys.exit(int(found.unlike > 0))


if __name__ == "__main__":
    main()
