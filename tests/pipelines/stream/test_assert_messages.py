"""What an assertion states is repeated; the values that it found are not."""

from collections.abc import Callable
from typing import Any

import pytest
import tensorflow as tf

from millrace.pipelines.stream.assert_messages import note_assertion, noted, stated_by, stated_texts

pytestmark = pytest.mark.tensorflow
CANARY = 4711.0


def stated(check: Callable[[Any], Any], value: Any = CANARY) -> str | None:
    """Return what is repeated of the error that a check raises in a graph."""
    function = tf.function(lambda x: (check(x), tf.identity(x))[1])
    given = tf.constant([value])
    texts = stated_texts(function.get_concrete_function(given).graph)
    with pytest.raises(tf.errors.InvalidArgumentError) as raised:
        function(given)
    assert str(value).removesuffix(".0") in str(raised.value)
    note_assertion(raised.value, texts)
    return noted(raised.value)


@pytest.mark.parametrize(
    "message", ["price is too large", "é and 'quotes' \"too\" \\d", "an [item] in [brackets]", "a: colon"]
)
def test_the_message_of_an_assertion_is_repeated(message: str) -> None:
    assert stated(lambda x: tf.debugging.assert_less(x, 100.0, message=message)) == message


def test_a_message_of_two_lines_becomes_one() -> None:
    assert stated(lambda x: tf.debugging.assert_less(x, 100.0, message="one\ntwo")) == "one two"


def test_without_a_message_the_condition_is_repeated() -> None:
    assert stated(lambda x: tf.debugging.assert_less(x, 100.0)) == "Condition x < y did not hold element-wise"


def test_a_constant_after_a_value_is_repeated_without_the_value() -> None:
    assert stated(lambda x: tf.debugging.Assert(tf.reduce_all(x < 100.0), [x, "as I say"])) == "as I say"


def test_an_assertion_inside_of_a_loop_is_found() -> None:
    def looped(x: Any) -> Any:
        def body(one: Any) -> Any:
            with tf.control_dependencies([tf.debugging.assert_less(one, 100.0, message="in a loop")]):
                return one + 1

        return tf.map_fn(body, x)

    assert stated(looped) == "in a loop"


def test_a_value_that_is_the_message_itself_is_not_repeated() -> None:
    def named(x: Any) -> Any:
        tf.debugging.Assert(tf.reduce_all(x != "secret"), [x])

    assert stated(named, "secret") is None


def test_what_is_no_assertion_states_nothing() -> None:
    assert stated_by(ValueError("[4711] too large"), ["too large"]) is None
