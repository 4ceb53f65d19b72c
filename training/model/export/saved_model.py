"""The SavedModel that each version holds, for TF Serving and all that reads one: the export writer `saved_model`.

Importing this loads no TensorFlow, and `prove` neither Keras nor the user's code.
"""

from collections.abc import Mapping
from pathlib import Path

from millrace.pipelines.schema import Column
from millrace.training.model.export.answers import SIGNATURE, plain
from millrace.training.model.export.export_writer import ExportWriter, WritableModel


class SavedModelWriter(ExportWriter):
    """Writes the module as it is, and answers with what TensorFlow alone reads of it."""

    title = "TensorFlow"

    def write(self, model: WritableModel, folder: Path) -> None:
        """Write the module, each weight once."""
        model.module.save(folder, model.user_code)

    def prove(self, folder: Path, rows: Mapping[str, Column]) -> Mapping[str, Column]:
        """Return what the signature answers."""
        import tensorflow as tf  # noqa: PLC0415 - the writer is known without

        tf.config.threading.set_intra_op_parallelism_threads(1)
        tf.config.threading.set_inter_op_parallelism_threads(1)
        loaded = tf.saved_model.load(str(folder))
        answers = loaded.signatures[SIGNATURE](**{name: tf.constant(column) for name, column in rows.items()})
        return {name: plain(tensor) for name, tensor in answers.items()}
