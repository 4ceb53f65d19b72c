"""What ONNX Runtime answers that knows neither TensorFlow nor the user's code: the gate of `model.onnx`.

    python -m millrace.training.model.export.onnx_proof FILE < request > answers

The request and the answers are those of `export_proof`. The converter may succeed with a file that no runtime can load,
or that answers otherwise, so nothing is published but what was asked here.
"""

import json
import os
import sys

import numpy as np

from millrace.pipelines.schema import Column
from millrace.pipelines.stream.record_sample import column_document, column_of


def as_ours(answer: Column) -> Column:
    """Return an answer as TensorFlow gives it: the runtime's texts are `str`."""
    if answer.dtype != object:
        return answer
    texts = [text.encode() if isinstance(text, str) else text for text in answer.ravel().tolist()]
    return np.array(texts, object).reshape(answer.shape)


def main() -> None:
    """Load the file that the command line names, and answer the request on standard input."""
    answers_to = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    import onnxruntime  # noqa: PLC0415 - the extra `onnx` brings it

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(sys.argv[1], options, providers=["CPUExecutionProvider"])
    given = {name: column_of(document) for name, document in json.load(sys.stdin).items()}
    names = [output.name for output in session.get_outputs()]
    answers = dict(zip(names, session.run(names, given), strict=True))
    with answers_to:
        json.dump({name: column_document(as_ours(answer)) for name, answer in answers.items()}, answers_to)


if __name__ == "__main__":
    main()
