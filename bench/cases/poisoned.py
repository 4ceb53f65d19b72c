"""What it costs in every format that one record in a hundred is bad in one of some twenty ways.

The records are those of the campaign that accounts for each of them (`tests/faults/campaigns/formats.py`). Clean and
poisoned ones are decoded, judged, made into blocks and learnt by the product's own parts, in turns, in one thread. The
ratio is of records produced in a CPU second; the figure is that of the format that loses most.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import tensorflow as tf
from rig import report

from millrace.app.service.process import tune
from millrace.app.settings.sections.records import RecordsSettings, to_decoder
from millrace.consumers.handoff import JOINED_RECORDS
from millrace.consumers.records import Chunk, Partition
from millrace.pipelines.formats import Decoder
from millrace.pipelines.stream.assemble import AssembleOptions, Assembler
from millrace.pipelines.stream.blocks import Rows
from millrace.pipelines.stream.decode import decode_chunk
from millrace.training.model.learner import Learner, LearnerOptions
from millrace.training.model.setup.strategy import DeviceOptions
from tests.faults.harness.forms import FORMS, Form, PoisonedStream
from tests.faults.harness.model import build_model
from tests.faults.harness.records import ExpectedPosition

BATCH, BATCHES, CHUNK, SHARE = 256, 16, JOINED_RECORDS, 0.01
PARTITION = Partition("bench", 0)


def chunks_of(form: Form, records: int, share: float) -> list[Chunk]:
    """Make records of a form, as they come from Kafka."""
    stream, random = PoisonedStream(form, share), Random(7)
    values = [stream.draw(ExpectedPosition(0, at), random)[0] for at in range(records)]
    return [_chunk(values[first : first + CHUNK], first) for first in range(0, records, CHUNK)]


def _chunk(values: Sequence[bytes | None], first: int) -> Chunk:
    size = len(values)
    return Chunk(
        partition=PARTITION,
        incarnation=1,
        start=first,
        end=first + size,
        offsets=np.arange(first, first + size),
        timestamps=np.arange(first, first + size),
        keys=[None] * size,
        values=values,
        headers=[()] * size,
        nbytes=sum(len(value or b"") for value in values),
        fetched_at=0.0,
    )


def decoder_of(form: Form, folder: Path) -> Decoder:
    """Return the decoder, as a config of this form has it."""
    for name, text in form.files.items():
        (folder / name).write_text(text)
    records = {**form.records, form.records["format"]: _at(folder, form)} if form.files else form.records
    return to_decoder(RecordsSettings.model_validate(records))


def _at(folder: Path, form: Form) -> dict[str, Any]:
    """Return the settings of the format, with its files where they are."""
    there = {f"./{name}": str(folder / name) for name in form.files}
    return {key: there.get(value, value) for key, value in form.records[form.records["format"]].items()}


def learnt(chunks: Sequence[Chunk], decoder: Decoder, learner: Learner) -> float:
    """Learn all records; return the CPU's seconds for one that was produced."""
    began = time.process_time()
    assembler = Assembler(decoder.schema, AssembleOptions(batch_size=BATCH, batches_per_call=BATCHES), [PARTITION], 1)
    for each in chunks:
        assembler.add(decode_chunk(each, decoder))
        while (block := assembler.take(0.0)) is not None:
            rows: Rows = tf.nest.map_structure(tf.constant, block.rows)
            learner.learn(rows._replace(labels=rows.labels["y"]))
    return (time.process_time() - began) / sum(map(len, chunks))


def main() -> None:
    """Read the options, measure, print."""
    tune()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=131_072)
    parser.add_argument("--rounds", type=int, default=9)
    given = parser.parse_args()
    kept, cost = dict[str, float](), dict[str, float]()
    with tempfile.TemporaryDirectory(prefix="poisoned-") as folder:
        for form in FORMS.values():
            decoder = decoder_of(form, Path(folder))
            options = LearnerOptions(schema=decoder.schema, batch_size=BATCH, devices=DeviceOptions(replicas=1), seed=1)
            learner = Learner(build_model, None, options)
            clean, poisoned = (chunks_of(form, given.records, share) for share in (0.0, SHARE))
            took: list[tuple[float, float]] = []
            for turn in range(given.rounds + 1):
                pair = learnt(clean, decoder, learner), learnt(poisoned, decoder, learner)
                took += [pair] if turn else []
            kept[form.name] = round(statistics.median(one / other for one, other in took), 3)
            cost[form.name] = round(statistics.median(one for one, _ in took) * 1e6, 2)
    report({"poisoned_of_clean": min(kept.values())}, {"by_format": kept, "cpu_us_a_clean_record": cost})


if __name__ == "__main__":
    main()
