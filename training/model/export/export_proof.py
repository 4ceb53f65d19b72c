"""The proof of an export: what a fresh process answers that knows neither Keras nor the user's code, and what differs.

    python -m millrace.training.model.export.export_proof FOLDER < request > answers

The request is a JSON object of input tensors, the answers one of output tensors; both keep every bit. No record is
written to a file. The comparison runs in the process that exports.
"""

import json
import os
import sys
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from millrace.pipelines.schema import Column
from millrace.pipelines.stream.record_sample import column_document, column_of

ROUNDING = 16
"""How many units of the last place of its dtype an answer may differ by, where the answer is 1; sums in another order
differ by fewer."""
ONNX_ROUNDING = 64
"""The same for ONNX Runtime, whose kernels round otherwise than TensorFlow's in each layer."""
SIGNATURE = "serving_default"


def request_of(raw: Mapping[str, Any]) -> str:
    """Return what a fresh process is asked."""
    return json.dumps({name: column_document(np.asarray(tensor)) for name, tensor in raw.items()})


def answers_in(text: str) -> dict[str, Column]:
    """Return what a fresh process has answered."""
    return {name: column_of(document) for name, document in json.loads(text).items()}


def tolerance_of(answers: Iterable[Column], units: int = ROUNDING) -> float:
    """Return the greatest difference that rounding explains, of the coarsest dtype among the answers."""
    return max((_rounding(answer, units) for answer in answers), default=0.0)


def difference(one: Column, other: Column) -> float:
    """Return the greatest difference of two columns, relative where values are greater than 1; infinite for texts."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return float("inf")
    if np.array_equal(one, other) or not one.size:
        return 0.0
    if one.dtype.kind in "ObSU":
        return float("inf")
    a, b = one.astype(np.float64), other.astype(np.float64)
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    with np.errstate(invalid="ignore"):
        apart = np.where(same, 0.0, np.abs(a - b) / np.maximum(1.0, np.abs(a)))
    return float(np.nan_to_num(apart.max(), nan=np.inf, posinf=np.inf))


def differing(ours: Mapping[str, Column], theirs: Mapping[str, Column], units: int = ROUNDING) -> dict[str, float]:
    """Return by how much each column differs that differs by more than rounding, or is not on both sides."""
    found = {name: float("inf") for name in ours.keys() ^ theirs.keys()}
    for name in ours.keys() & theirs.keys():
        apart = difference(ours[name], theirs[name])
        if apart > _rounding(ours[name], units):
            found[name] = apart
    return found


def _rounding(column: Column, units: int) -> float:
    return units * float(np.finfo(str(column.dtype)).eps) if column.dtype.kind == "f" else 0.0


def plain(tensor: Any) -> Column:
    """Return a tensor as an array of one of numpy's own dtypes: a bfloat16 as float32, which holds it exactly."""
    array: Column = tensor.numpy()
    return array.astype(np.float32) if array.dtype.name == "bfloat16" else array


def main() -> None:
    """Load the export in the folder that the command line names, and answer the request on standard input."""
    # TensorFlow's native lines go to standard error; nothing but the answers may stand in standard output.
    answers_to = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    import tensorflow as tf  # noqa: PLC0415 - the comparison needs none

    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    request = json.load(sys.stdin)
    loaded = tf.saved_model.load(sys.argv[1])
    given = {name: tf.constant(column_of(document)) for name, document in request.items()}
    answers = loaded.signatures[SIGNATURE](**given)
    documents = {name: column_document(plain(tensor)) for name, tensor in answers.items()}
    with answers_to:
        json.dump(documents, answers_to)


if __name__ == "__main__":
    main()
