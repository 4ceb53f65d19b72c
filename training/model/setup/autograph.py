"""AutoGraph, TensorFlow's rewriting of Python control flow over tensors: applied to the user's code, never to ours.

Rewriting our own functions would take more than half of the CPU time of tracing a call. They write their loops and
branches with `tf.while_loop` and `tf.cond` instead. A user's `train_step` may use `if` and `for` on tensors, and so may
whatever it calls.
"""

from collections.abc import Callable
from typing import Any, TypeVar

import tensorflow as tf

Function = TypeVar("Function", bound=Callable[..., Any])
# Internal, because the public `do_not_convert` would turn AutoGraph off for the user's code that ours calls, too.
_convert = tf.__internal__.autograph.tf_convert
_UNDECIDED = tf.__internal__.autograph.control_status_ctx()
"""The state outside of any conversion."""


def as_is(function: Function) -> Function:
    """Decorate a function of ours that runs while a step is traced: it is not rewritten."""
    kept: Function = _convert(function, _UNDECIDED, convert_by_default=False)
    return kept


def converted(function: Function) -> Function:
    """Return a function of the user's as AutoGraph rewrites it; one of Keras' is not rewritten."""
    rewritten: Function = _convert(function, _UNDECIDED)
    return rewritten
