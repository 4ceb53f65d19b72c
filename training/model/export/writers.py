"""The export writers by the names that the settings know. Importing this loads no TensorFlow.

    python -m millrace.training.model.export.writers WRITER FOLDER < questions > answers

As a program it is the fresh process that proves an export: it knows nothing but what was written. The writer is one of
ours, or as /models/coreml.py:CoreML. The comparison runs in the process that exports.
"""

import os
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

from millrace.consumers.errors import ConfigError
from millrace.training.errors import ModelError
from millrace.training.model.export.answers import as_text, of_text
from millrace.training.model.export.export_writer import ExportWriter
from millrace.training.model.export.onnx import OnnxWriter
from millrace.training.model.export.saved_model import SavedModelWriter
from millrace.training.model.setup.model_file import load_class, require_file, where_raised

SETTING = "export.formats"
SAVED_MODEL, ONNX = "saved_model", "onnx"
WRITERS: Mapping[str, ExportWriter] = {SAVED_MODEL: SavedModelWriter(), ONNX: OnnxWriter()}


def writer_of(name: str) -> ExportWriter:
    """Return the writer of a name, or of a class in a file, as in /models/coreml.py:CoreML; ModelError otherwise."""
    if (known := WRITERS.get(name)) is not None:
        return known
    path, _, class_name = name.rpartition(":")
    found: ExportWriter = load_class(Path(path), class_name, SETTING, ExportWriter)
    return found


def require_found(names: Iterable[str]) -> None:
    """Raise as `require_all` does, but of a class of the user's look only whether its file is there.

    For a process that does not export by itself, as a trainer: the file may load TensorFlow, or anything else.
    """
    for name in names:
        if (known := WRITERS.get(name)) is not None:
            known.require()
        else:
            require_file(Path(name.rpartition(":")[0]), SETTING)


def require_all(names: Iterable[str]) -> None:
    """Raise ConfigError if a format of an export needs something that is not there.

    ModelError if `require` of a user's writer raises something else, as `import coremltools` does.
    """
    for name in names:
        writer = writer_of(name)
        try:
            writer.require()
        except ConfigError:
            raise
        except (Exception, SystemExit) as error:
            if name in WRITERS:
                raise
            path, _, class_name = name.rpartition(":")
            raise ModelError(
                f"{SETTING}: {class_name} in {path} cannot be used here: its require() raised "
                f"{where_raised(error, Path(path))}"
            ) from error


def main() -> None:
    """Have the writer that the command line names answer the questions on standard input, from the folder named."""
    # TensorFlow's native lines go to standard error; nothing but the answers may stand in standard output.
    answers_to = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    writer, folder = writer_of(sys.argv[1]), Path(sys.argv[2])
    text = as_text([writer.prove(folder, rows) for rows in of_text(sys.stdin.read())])
    with answers_to:
        answers_to.write(text)


if __name__ == "__main__":
    main()
