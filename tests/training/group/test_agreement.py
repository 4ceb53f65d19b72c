"""What the members of a group agree on: from their words alone, the same at each of them."""

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from millrace.training.errors import NotOneStateError
from millrace.training.group.agreement import Flag, Order, Step, Word, agree

pytestmark = pytest.mark.row(31)
PATIENCE_MS = 250.0
FLAGS = (Flag.EXPECTS, Flag.ENDED, Flag.STOP, Flag.HELD, Flag.REOPEN)


def words_of(*given: dict[str, object]) -> list[Word]:
    """Return words at one place, each with what is given."""
    return [Word(**{"call": 7, "incarnation": 2, **one}) for one in given]  # type: ignore[arg-type]


members = st.lists(
    st.builds(
        Word,
        call=st.just(7),
        incarnation=st.just(2),
        ready=st.integers(0, 4),
        waited_ms=st.integers(0, 500),
        flags=st.sets(st.sampled_from(FLAGS)).map(lambda flags: Flag(sum(flags))),
    ),
    min_size=2,
    max_size=5,
)


@given(members, st.sampled_from(Order), st.booleans())
def test_a_call_has_batches_and_nothing_speaks_against_it(words: list[Word], order: Order, paused: bool) -> None:
    chief = words[0]
    flags = chief.flags | (Flag.PAUSED if paused else Flag.NONE)
    words[0] = Word(call=7, incarnation=2, ready=chief.ready, waited_ms=chief.waited_ms, flags=flags, order=order)
    agreed = agree(words, PATIENCE_MS)
    every = [flag for word in words for flag in word.flags]
    if agreed.step is Step.CALL:
        assert agreed.batches == max(word.ready for word in words) > 0
        assert not {Flag.STOP, Flag.HELD, Flag.PAUSED, Flag.REOPEN} & set(every)
        assert order is Order.NONE
    if agreed.step is Step.ORDER:
        assert agreed.order is (order if order is not Order.NONE else Order.REOPEN)
    if Flag.STOP in every:
        assert agreed.step is Step.END
        assert agreed.stopping == tuple(n for n, word in enumerate(words) if Flag.STOP in word.flags)


@given(members)
def test_a_word_is_the_same_after_its_way_as_integers(words: list[Word]) -> None:
    assert [Word.of(word.row()) for word in words] == words
    assert all(word.row().dtype == np.int64 for word in words)


def test_a_block_waits_for_those_of_others_that_expect_one_but_not_for_ever() -> None:
    waiting = words_of({"ready": 2, "waited_ms": 10}, {"flags": Flag.EXPECTS})
    assert agree(waiting, PATIENCE_MS).step is Step.WAIT
    tired = words_of({"ready": 2, "waited_ms": 250}, {"flags": Flag.EXPECTS})
    assert agree(tired, PATIENCE_MS).step is Step.CALL
    alone = words_of({"ready": 2, "waited_ms": 10}, {})
    assert agree(alone, PATIENCE_MS).step is Step.CALL


def test_the_group_ends_when_all_have_ended_and_hold_no_block() -> None:
    assert agree(words_of({"flags": Flag.ENDED}, {"flags": Flag.ENDED}), PATIENCE_MS).step is Step.END
    assert agree(words_of({"flags": Flag.ENDED}, {}), PATIENCE_MS).step is Step.WAIT
    assert agree(words_of({"flags": Flag.ENDED}, {"flags": Flag.ENDED, "ready": 1}), PATIENCE_MS).step is Step.CALL


@pytest.mark.parametrize("other", [{"call": 8}, {"incarnation": 3}])
def test_members_between_other_calls_are_refused(other: dict[str, object]) -> None:
    with pytest.raises(NotOneStateError, match="not between the same two calls"):
        agree(words_of({}, other), PATIENCE_MS)
