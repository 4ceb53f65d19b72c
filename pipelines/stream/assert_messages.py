"""The texts that assertions of a traced graph state, so that an error can repeat them without repeating its data.

`tf.debugging.assert_…` raises with its message and with the values that it found. The message is a constant of the
user's own code; the values are those of records. Only what stands as a constant in the graph is repeated here.

Pure; takes graphs as they are and imports no TensorFlow.
"""

import re
from collections.abc import Iterable
from typing import Any

_RAISED = "assertion failed: "
_TENSORFLOWS_OWN = re.compile(r"Condition .* did not hold.*|[xy] \(.*\) = ", re.DOTALL)
"""What the library adds to a message by itself: the condition, and what stands before each value."""

_ESCAPES = str.maketrans({"\\": "\\\\", '"': '\\"', "'": "\\'", "\n": "\\n", "\r": "\\r", "\t": "\\t"})


def stated_texts(graph: Any) -> frozenset[str]:
    """Return the constant texts that the assertions of a graph, and of the functions that it calls, raise with."""
    definition = graph.as_graph_def()
    found = set[str]()
    for nodes in [definition.node, *(function.node_def for function in definition.library.function)]:
        constants = {node.name: node for node in nodes if node.op == "Const"}
        for name in (name for node in nodes if node.op == "Assert" for name in node.input):
            constant = constants.get(name.partition(":")[0])
            if constant is not None:
                texts = constant.attr["value"].tensor.string_val
                found.update(text.decode(errors="replace") for text in texts)
    return frozenset(found)


def stated_by(error: BaseException, texts: Iterable[str]) -> str | None:
    """Return which of these texts an assertion has raised with; None where it was none, or no assertion."""
    _, found, data = str(error).partition(_RAISED)
    if not found:
        return None
    # TensorFlow prints a text escaped as in C, with characters beyond ASCII as they are.
    places = {text: place for text in texts if (place := data.find(f"[{text.translate(_ESCAPES)}]")) >= 0}
    in_order = sorted(places, key=lambda text: places[text])
    own = [text for text in in_order if not _TENSORFLOWS_OWN.fullmatch(text)]
    return next(iter([*own, *in_order]), None)


def note_assertion(error: BaseException, texts: Iterable[str]) -> None:
    """Attach what the assertion states to the error, as its note."""
    if (text := stated_by(error, texts)) is not None:
        error.add_note(" ".join(text.split()).removesuffix(":"))


def noted(error: BaseException) -> str | None:
    """Return the note that was attached; None where there is none."""
    return next(iter(getattr(error, "__notes__", ())), None)
