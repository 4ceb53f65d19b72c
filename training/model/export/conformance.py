"""What every export writer keeps: the tests ask it of ours, `millrace validate` of those of users.

1. What is written answers as the model does: on the rows at hand, and on strange ones (one row alone; empty lists and
   texts, zeros, limits), if the model itself answers those.
2. Two writes of one model hold the same files, and give the same answers to the last bit.
3. What is half written is never taken for whole: a folder without its files, or with every file of it cut in half,
   raises, or answers as the whole one does.
"""

import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from millrace.pipelines.schema import Column, Field
from millrace.training.errors import ExportRefusedError, gist
from millrace.training.model.export.answers import differing, raw_columns
from millrace.training.model.export.export_reference import expected_answers
from millrace.training.model.export.export_writer import ExportWriter, WritableModel
from millrace.training.model.export.writers import SAVED_MODEL, WRITERS
from millrace.training.model.probes import Probe

Answers = Mapping[str, Column]
Prove = Callable[[Sequence[Answers], Path], Sequence[Answers]]
"""Asks the writer in a fresh process for the answers to raw features; ExportRefusedError if it cannot give any."""
_FAR = 100


def complaints(writer: ExportWriter, model: WritableModel, probe: Probe, prove: Prove) -> Iterator[str]:
    """Write the model, ask what was written, and yield a sentence for each claim that does not hold."""
    served = model.module.served
    kinds, raw, ours = ["the rows at hand"], [raw_columns(served.schema, probe.features)], []
    ours.append(expected_answers(served, probe))
    for kind, rows in _strange(served.schema.features, probe).items():
        # The user's own code may raise anything on rows that it has never met.
        with suppress(Exception):
            ours.append(expected_answers(served, rows))
            raw.append(raw_columns(served.schema, rows.features))
            kinds.append(kind)
    with tempfile.TemporaryDirectory(prefix="millrace-export-") as below:
        folders = [Path(below, name) for name in ("first", "second")]
        beside = [_write(writer, model, folder) for folder in folders]
        written, again = (_files(folder) - before for folder, before in zip(folders, beside, strict=True))
        answers, others = (prove(raw, folder) for folder in folders)
        for kind, expected, answer, other in zip(kinds, ours, answers, others, strict=True):
            if found := differing(expected, answer, writer.rounding):
                output, apart = max(found.items(), key=lambda one: one[1])
                yield f"on {kind} the output {output!r} differs from the model's by up to {apart:.3g}"
                break
            if differing(answer, other, 0):
                yield f"on {kind} two writes of the same model answer differently"
        if written != again:
            yield f"two writes of the same model leave other files: {', '.join(sorted(written ^ again)[:3])}"
        states: dict[str, Callable[[Path], object]] = {
            "cut in half": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
            "gone": Path.unlink,
        }
        for state, spoil in states.items():
            for name in again:
                spoil(folders[1] / name)
            try:
                (answer,) = prove(raw[:1], folders[1])
            except ExportRefusedError:
                continue
            if state == "gone" or differing(answers[0], answer, 0):
                yield f"with its files {state} it answers all the same, so a folder half written is taken for whole"


def _write(writer: ExportWriter, model: WritableModel, folder: Path) -> set[str]:
    """Write into a folder as an export does, beside the SavedModel; return the files that were there before."""
    saved_model = WRITERS[SAVED_MODEL]
    if writer is not saved_model:
        saved_model.write(model, folder)
    before = _files(folder)
    try:
        writer.write(model, folder)
    except ExportRefusedError:
        raise
    except (Exception, SystemExit) as error:
        raise ExportRefusedError(f"its write raised {gist(error)}") from error
    return before


def _files(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def _strange(fields: Iterable[Field], probe: Probe) -> dict[str, Probe]:
    """Return rows that the schema admits and a stream seldom has, by how an error calls them.

    No number is far out: there float32 rounds more than the writer's `rounding`, in whichever form a model is.
    """
    columns, rows = dict(probe.features), len(next(iter(probe.features.values())))
    for field in fields:
        if field.lengths is not None:
            columns[field.lengths.name] = np.zeros(rows, np.int32)
        if field.pad is not None:
            odd: list[Any] = [field.pad]
        elif field.one_of is not None:
            odd = [*field.one_of]
        elif field.dtype == "string":
            odd = [b"", b"\xff\xfe", "\u00e9\u4e2d".encode(), b"x" * 1000]
        else:
            least, most = field.min, field.max
            odd = [0, 1, -1] if field.numpy_dtype.kind in "if" else [0, 1]
            odd = [one for one in odd if (least is None or one >= least) and (most is None or one <= most)]
            odd += [limit for limit in (least, most) if limit is not None and abs(limit) < _FAR]
        if not odd:
            continue
        values = [one.encode() if isinstance(one, str) else one for one in odd]
        column = np.empty_like(columns[field.name])
        for row in range(rows):
            column[row] = values[row % len(values)]
        columns[field.name] = column
    return {
        "one row alone": probe.arranged(np.zeros(1, np.int64)),
        "empty lists and texts, zeros and limits": Probe(features=columns, labels=probe.labels),
    }
