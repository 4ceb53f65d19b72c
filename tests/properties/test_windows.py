"""Windows against plain lists: any log, cut into any chunks, stopped at any settled position, gives the same rows.

Rows are made ahead of what is settled; a checkpoint is made of what is settled, written as its files are, and restored.
The reference goes through each partition record by record, and forgets the key that it has seen least recently.
"""

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.consumers.reasons import Reason
from millrace.consumers.records import Partition
from millrace.pipelines.schema import Field, Schema
from millrace.pipelines.shaping.windows.key_windows import KeyWindows
from millrace.pipelines.shaping.windows.window_layout import WindowLayout
from millrace.pipelines.shaping.windows.windows import NAME, WindowSettings, WindowShaper, taken_of, texts_cut
from millrace.pipelines.stream.assemble import AssembleOptions, Assembler
from millrace.pipelines.stream.blocks import Block
from millrace.pipelines.stream.decode import Decoded, Refused
from millrace.pipelines.stream.row_order import RotationOptions
from millrace.training.checkpoints.part_files import decode, encode
from millrace.training.ledger.ledger import Ledger, PartitionAccount, Skip
from tests.properties.effort import tried

PARTITIONS = [Partition("clicks", number) for number in range(2)]
MOST_TEXT = 6
SKIP = Skip(order="rewind-1", partition=PARTITIONS[0], start=30, end=41, reason="a bad hour")


@dataclass(frozen=True)
class Record:
    """One record, as it is decoded."""

    offset: int
    user: Any
    price: float
    words: tuple[bytes, bytes]
    near: float
    far: int
    time: int


Log = list[Record | Reason | None]
"""What is at each offset: a record, one that is refused, or none."""


def schema(kind: str, ahead: tuple[int, int]) -> Schema:
    return Schema(
        features=(
            Field(name="user", source="user", dtype="string" if kind == "string" else "int64"),
            Field(name="price", source="price", dtype="float32"),
            Field(name="words", source="words", dtype="string", shape=(2,)),
            Field(name="now", source="price", dtype="float32"),
        ),
        labels=(
            Field(name="near", source="near", dtype="float32", ahead=ahead[0]),
            Field(name="far", source="far", dtype="int32", ahead=ahead[1]),
        ),
    )


def made_up(random: Random, kind: str, count: int) -> Log:
    """Return a log: records, what is refused, and gaps."""
    users: list[Any] = [*range(random.choice([1, 3, 9]))]
    if kind == "string":
        users = [f"{user}".encode() * random.choice([1, 1, 70]) for user in users]
    log: Log = []
    for offset in range(count):
        fate = random.random()
        words = (b"w" * random.randrange(10), "ä".encode() * random.randrange(5))
        record = Record(offset, random.choice(users), random.random(), words, random.random(), offset, offset * 700)
        log.append(record if fate < 0.9 else Reason.MALFORMED if fate < 0.95 else None)
    return log


def chunk_of(log: Log, partition: Partition, start: int, end: int, incarnation: int) -> Decoded:
    records = [one for one in log[start:end] if isinstance(one, Record)]
    words = np.empty((len(records), 2), object)
    words[:] = [[*one.words] for one in records] if records else np.empty((0, 2), object)
    users = [one.user for one in records]
    keys = np.empty(len(users), object)
    keys[:] = users
    texts = any(isinstance(one.user, bytes) for one in log if isinstance(one, Record))
    prices = np.array([one.price for one in records], np.float32)
    refused = [Refused(at, one) for at, one in enumerate(log[start:end], start) if isinstance(one, Reason)]
    return Decoded(
        partition=partition,
        incarnation=incarnation,
        start=start,
        end=end,
        fetched_at=0.0,
        lost=0,
        offsets=np.array([one.offset for one in records], np.int64),
        event_times=np.array([one.time for one in records], np.int64),
        features={
            "user": keys if texts else keys.astype(np.int64),
            "price": prices,
            "words": words,
            "now": prices,
        },
        labels={
            "near": np.array([one.near for one in records], np.float32),
            "far": np.array([one.far for one in records], np.int32),
        },
        weights=None,
        refused=tuple(refused),
        nbytes=100 * len(records),
    )


def cut_text(text: bytes) -> bytes:
    return text[:MOST_TEXT].decode(errors="ignore").encode()


def expected(log: Log, partition: Partition, layout: WindowLayout) -> dict[int, dict[str, Any]]:
    """Return the rows by offset, found one record after the other."""
    options, held, rows = layout.options, OrderedDict[Any, list[Record]](), {}
    for one in log:
        if not isinstance(one, Record) or (partition == SKIP.partition and SKIP.start <= one.offset < SKIP.end):
            continue
        key = one.user if options.by else 0
        if key not in held and len(held) == layout.capacity:
            held.popitem(last=False)
        held.setdefault(key, []).append(one)
        held.move_to_end(key)
        upto = held[key][: max(0, len(held[key]) - layout.ahead)]
        if len(upto) < options.min_length or (len(upto) - options.min_length) % options.every:
            continue
        window = upto[:: -options.dilation][: layout.length][::-1]
        fill = layout.length - len(window)
        near, far = layout.schema.labels
        times = [record.time for record in window]
        gaps = [0.0, *((after - before) / 1000 for before, after in pairwise(times))]
        rows[one.offset] = {
            "user": window[-1].user,
            "price": [0.0] * fill + [float(np.float32(record.price)) for record in window],
            "words": [[b"", b""]] * fill + [[*map(cut_text, record.words)] for record in window],
            "now": float(np.float32(window[-1].price)),
            "count": len(window),
            "gaps": [0.0] * fill + [float(np.float32(gap)) for gap in gaps],
            "near": float(np.float32(held[key][len(upto) - 1 + near.ahead].near)),
            "far": held[key][len(upto) - 1 + far.ahead].far,
        }
    return rows


def found_in(block: Block) -> Iterator[tuple[Partition, int, dict[str, Any]]]:
    columns = {**block.rows.features, **block.rows.labels}
    for batch, row in zip(*np.nonzero(block.rows.offsets >= 0), strict=True):
        values = {name: column[batch, row] for name, column in columns.items()}
        plain = {name: value.tolist() if hasattr(value, "tolist") else value for name, value in values.items()}
        yield PARTITIONS[block.rows.partitions[batch, row]], int(block.rows.offsets[batch, row]), plain


def begun() -> Ledger:
    """Return the ledger at the beginning, with the range that is to be skipped."""
    ledger = Ledger()
    for partition in PARTITIONS:
        ledger.join(partition, 0)
    ledger.skip(SKIP)
    return ledger


def settled_once(logged: Log, account: PartitionAccount, rows: int) -> bool:
    """Return whether each record of a partition is counted under its one name."""
    passed = range(SKIP.start, SKIP.end) if SKIP.order in account.skipped else ()
    records = sum(isinstance(one, Record) for at, one in enumerate(logged) if at not in passed)
    return (account.learnt, account.skipped.get(NAME, 0)) == (rows, records - rows)


def written(states: WindowShaper) -> tuple[dict[str, Any], dict[str, Any], bytes]:
    """Return the arrays as they are read again, the facts, and the very bytes."""
    arrays, facts = states.saved()
    raw = b"".join(bytes(piece) for piece in encode(NAME, arrays))
    return decode(raw), facts, raw


def at_once(logs: dict[Partition, Log], positions: dict[Partition, int], layout: WindowLayout) -> Any:
    """Return facts and bytes of what is held at these positions, taken in record by record without a restart."""
    found = {}
    for partition, end in positions.items():
        state, every = KeyWindows(layout), chunk_of(logs[partition], partition, 0, end, 1)
        passed = (every.offsets >= SKIP.start) & (every.offsets < SKIP.end) & (partition == SKIP.partition)
        taken = taken_of(texts_cut(every, layout), layout)
        for at in np.flatnonzero(~passed).tolist():
            state.take(taken.rows(at, at + 1))
            assert state.nbytes <= layout.options.max_bytes
        found[partition] = (end, state)
    whole = WindowShaper(layout)
    whole._followed.replace(found)
    return written(whole)[1:]


@pytest.mark.row(36)
@tried(12)
@given(seed=st.integers(0, 2**32))
@pytest.mark.parametrize(("by", "kind"), [("user", "int64"), ("user", "string"), (None, "int64")])
def test_any_cut_and_any_restart_give_the_rows_of_plain_lists(by: str | None, kind: str, seed: int) -> None:
    random = Random(seed)
    far = random.choice([0, 0, 3])
    length = random.choice([1, 2, 5])
    options = WindowSettings(
        length=length,
        by=by,
        of=("price", "words"),
        every=random.choice([1, 1, 3]),
        dilation=random.choice([1, 1, 2, 5]),
        min_length=random.randint(1, length),
        lengths="count",
        gaps="gaps",
        max_text=f"{MOST_TEXT}B",
    )
    one = WindowLayout(schema(kind, (random.randint(0, far), far)), options)
    layout = WindowLayout(
        one.schema, options.model_copy(update={"max_bytes": one.key_nbytes * random.choice([1, 2, 5, 100])})
    )
    logs = {partition: made_up(random, kind, 120) for partition in PARTITIONS}
    saved: tuple[dict[str, Any], dict[str, Any], bytes] | None = None
    kept: dict[Partition, int] = dict.fromkeys(PARTITIONS, 0)
    found: dict[tuple[Partition, int], dict[str, Any]] = {}
    rotates = random.random() < 0.5
    books = begun().snapshot()
    for life in range(4):
        ledger = Ledger()
        ledger.restore(books)
        ledger.raise_incarnation(life)
        incarnation = ledger.begin_incarnation()
        states = WindowShaper(layout)
        if saved is not None:
            states.load(*saved[:2])
        found = {at: row for at, row in found.items() if at[1] < kept[at[0]]}
        settled = dict(kept)
        assembler = Assembler(
            layout.shaped,
            AssembleOptions(
                batch_size=3,
                batches_per_call=random.choice([1, 4]),
                rotation=RotationOptions(share=4) if rotates else None,
            ),
            PARTITIONS,
            incarnation,
            ledger.skips,
            shape=states.open(incarnation, kept),
        )
        read = dict(kept)
        while any(read[partition] < len(logs[partition]) for partition in PARTITIONS):
            partition = random.choice([one for one in PARTITIONS if read[one] < len(logs[one])])
            start, end = read[partition], min(len(logs[partition]), read[partition] + random.randint(1, 50))
            assembler.add(chunk_of(logs[partition], partition, start, end, incarnation))
            read[partition] = end
            last = all(read[one] == len(logs[one]) for one in PARTITIONS)
            while (block := assembler.take(0.0, flush=last)) is not None:
                for where, offset, row in found_in(block):
                    assert (where, offset) not in found
                    found[where, offset] = row
                for span in block.facts.spans:
                    assert span.balanced
                    assert span.start == settled[span.partition]
                    settled[span.partition] = span.end
                assert ledger.settle(block.facts)
                states.settle(block.facts)
                assert settled == ledger.positions()
                if random.random() < 0.3:
                    saved, kept, books = written(states), dict(settled), ledger.snapshot()
            if life < 3 and random.random() < 0.1:
                break
    for partition in PARTITIONS:
        rows = expected(logs[partition], partition, layout)
        assert settled_once(logs[partition], ledger.statistics().partitions[partition], len(rows))
        assert {at: row for (where, at), row in found.items() if where == partition} == rows
    if saved is not None:
        assert at_once(logs, kept, layout) == saved[1:]
