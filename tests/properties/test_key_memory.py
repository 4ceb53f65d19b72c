"""What is remembered of keys outside of training: the row of one more record is the one that training makes of it.

The reference are the plain lists of `test_windows`, which also hold training to its rows.
"""

from dataclasses import replace
from random import Random
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.consumers.records import Partition
from millrace.pipelines.shaping.windows.key_memory import KeyMemory
from millrace.pipelines.shaping.windows.window_layout import WindowLayout
from millrace.pipelines.shaping.windows.windows import NAME, WindowSettings, WindowShaper
from millrace.pipelines.stream.decode import Decoded
from millrace.training.checkpoints.part_files import decode, encode
from tests.properties.effort import tried
from tests.properties.test_windows import MOST_TEXT, Log, Record, chunk_of, expected, made_up, schema

HERE, OTHER = Partition("clicks", 1), Partition("clicks", 2)


def asked(decoded: Decoded, rows: Any) -> Decoded:
    """Return records as a request brings them: without labels."""
    features = {name: column[rows] for name, column in decoded.features.items()}
    return replace(
        decoded,
        offsets=decoded.offsets[rows],
        event_times=decoded.event_times[rows],
        features=features,
        labels={},
        refused=(),
    )


def row(rows: Any, index: int) -> dict[str, Any]:
    values = {name: column[index] for name, column in rows.items()}
    return {name: value.tolist() if hasattr(value, "tolist") else value for name, value in values.items()}


def elsewhere(log: Log) -> Log:
    """Return a log of other users."""
    return [
        replace(one, user=one.user + (b"!" if isinstance(one.user, bytes) else 1000))
        if isinstance(one, Record)
        else one
        for one in log
    ]


def loaded(layout: WindowLayout, trained: WindowShaper, positions: dict[Partition, int]) -> KeyMemory:
    """Return a memory that goes on from a checkpoint."""
    arrays, facts = trained.saved()
    raw = b"".join(bytes(piece) for piece in encode(NAME, arrays))
    states = WindowShaper(layout).states_of(decode(raw), facts)
    assert states is not None
    memory = KeyMemory(layout)
    for partition, position in positions.items():
        at, state = states.get(partition, (position, None))
        assert at == position
        memory.replace(partition, position, state)
    return memory


@pytest.mark.row(47)
@tried(15)
@given(seed=st.integers(0, 2**32))
@pytest.mark.parametrize("kind", ["int64", "string"])
def test_a_row_of_memory_is_the_one_of_training_after_any_checkpoint_and_cut(kind: str, seed: int) -> None:
    random = Random(seed)
    far, length = random.choice([0, 0, 3]), random.choice([1, 2, 5])
    options = WindowSettings(
        length=length,
        by="user",
        of=("price", "words"),
        every=random.choice([1, 3]),
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
    logs = {HERE: made_up(random, kind, 120), OTHER: elsewhere(made_up(random, kind, 60))}
    plain = {"options": options.model_copy(update={"every": 1, "min_length": 1}), "schema": schema(kind, (0, 0))}
    same = {"ahead": 0, "length": length, "capacity": layout.capacity}
    reference = cast("WindowLayout", SimpleNamespace(**plain, **same))
    rows = expected(logs[HERE], HERE, reference)

    # Training goes as far as its checkpoint.
    read = {partition: random.randint(0, len(log)) for partition, log in logs.items()}
    trained = WindowShaper(layout)
    shape = trained.open(1, dict.fromkeys(logs, 0), at_once=True)
    for partition, log in logs.items():
        shape(chunk_of(log, partition, 0, read[partition], 1))
    memory = loaded(layout, trained, read)

    # From there on the memory follows the topic.
    compared = 0
    while read[HERE] < len(logs[HERE]):
        partition = random.choice([each for each in logs if read[each] < len(logs[each])])
        start, end = read[partition], min(len(logs[partition]), read[partition] + random.randint(1, 20))
        # Some of it was read before.
        chunk = chunk_of(logs[partition], partition, max(0, start - random.choice([0, 0, 7])), end, 1)
        if partition == HERE:
            new = chunk_of(logs[partition], partition, start, end, 1)
            first = np.unique(new.features["user"].astype(str), return_index=True)[1].tolist()
            found = memory.rows(asked(new, np.arange(len(new))))
            # Where keys make room, one of these records may take the place of the next one's key.
            for index in first if layout.capacity == 100 else [0][: len(first)]:
                offset = int(new.offsets[index])
                wanted = {name: value for name, value in rows[offset].items() if name not in {"near", "far"}}
                assert row(found, index) == wanted
                compared += 1
        memory.take(chunk)
        read[partition] = end
        assert memory.positions()[partition] == end
    assert compared or logs[HERE] == []


def test_a_key_of_two_partitions_is_that_of_the_one_that_saw_it_last() -> None:
    layout = WindowLayout(schema("int64", (0, 0)), WindowSettings(length=3, by="user", of=("price",), lengths="count"))
    memory = KeyMemory(layout)
    log: Log = [Record(at, 7, float(at), (b"", b""), 0.0, 0, at) for at in range(6)]
    memory.take(chunk_of(log, HERE, 0, 2, 1))
    memory.take(chunk_of(log, OTHER, 0, 1, 1))
    question = asked(chunk_of(log, HERE, 5, 6, 1), np.arange(1))
    assert memory.rows(question)["price"].tolist() == [[0.0, 0.0, 5.0]]
    memory.take(chunk_of(log, HERE, 2, 4, 1))
    assert memory.rows(question)["price"].tolist() == [[2.0, 3.0, 5.0]]
    assert memory.rows(question)["price"].tolist() == [[2.0, 3.0, 5.0]], "what is asked is not remembered"
    assert memory.figures().keys == 2


def test_a_state_without_its_oldest_keys_holds_the_others_as_they_are() -> None:
    layout = WindowLayout(schema("string", (0, 0)), WindowSettings(length=3, by="user", of=("price",), lengths="count"))
    trained = WindowShaper(layout)
    log: Log = [Record(at, str(at % 4).encode(), float(at), (b"", b""), 0.0, 0, at) for at in range(10)]
    trained.open(1, {HERE: 0}, at_once=True)(chunk_of(log, HERE, 0, 10, 1))
    (state,) = trained._followed.states()
    fewer = state.without_oldest(2)
    keys, seen, columns = fewer.held()
    assert keys == [b"0", b"1"], "those that came last"
    assert seen.tolist() == [3, 3]
    assert columns["features/price"].tolist() == [4.0, 8.0, 5.0, 9.0]
