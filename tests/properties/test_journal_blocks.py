"""The journal's blocks come back as they were written, whatever they cover, and nothing else is taken for blocks."""

from hypothesis import given
from hypothesis import strategies as st

from millrace.training.history.journal_blocks import RecordedBlock, decode, encode
from tests.properties.effort import tried

COUNTS = st.integers(0, 2**40) | st.integers(0, 300)
LENGTHS = st.just(0) | COUNTS


@st.composite
def _histories(draw: st.DrawFn) -> tuple[int, list[RecordedBlock]]:
    partitions = draw(st.integers(1, 40))
    block = st.builds(
        RecordedBlock,
        lengths=st.lists(LENGTHS, min_size=partitions, max_size=partitions).map(tuple),
        rows=COUNTS,
        refused=COUNTS,
        turn=st.none() | st.tuples(st.integers(0, partitions - 1), COUNTS),
        searched=st.booleans(),
        bypassed=st.booleans(),
        lost=st.booleans(),
    )
    return partitions, draw(st.lists(block, max_size=20))


@given(_histories())
@tried(80)
def test_blocks_are_read_back_as_they_were_written(history: tuple[int, list[RecordedBlock]]) -> None:
    partitions, blocks = history
    assert list(decode(b"".join(map(encode, blocks)), partitions)) == blocks


@given(_histories(), st.integers(1, 12))
@tried(80)
def test_a_block_that_is_cut_off_is_refused_and_those_before_it_are_read(
    history: tuple[int, list[RecordedBlock]], cut: int
) -> None:
    partitions, blocks = history
    whole = [encode(block) for block in blocks]
    raw = b"".join(whole)[:-cut]
    read, refused = [], False
    try:
        for block in decode(raw, partitions):
            read.append(block)  # noqa: PERF402 - those before the one that is refused stay
    except ValueError:
        refused = True
    ends = {sum(map(len, whole[:count])) for count in range(len(whole) + 1)}
    assert refused == (len(raw) not in ends)
    assert read == blocks[: len(read)]
    assert len(b"".join(whole[: len(read) + 1])) > len(raw) or len(read) == len(blocks)


@given(st.binary(max_size=60), st.integers(1, 5))
@tried(80)
def test_any_bytes_are_blocks_of_so_many_partitions_or_are_refused(raw: bytes, partitions: int) -> None:
    try:
        blocks = list(decode(raw, partitions))
    except ValueError:
        return
    assert all(len(block.lengths) == partitions for block in blocks)
