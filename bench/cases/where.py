"""`records.where` that filters nine records of ten: what it gains on the way from bytes to a learnt block.

The same records are decoded, made into blocks and learnt by the product's own parts, with `where` and without, in
turns, in one thread, in JSON, Avro and Protobuf. The topic is the same in both; so the ratio says how many times as
fast a topic is read of which a tenth is learnt. Time is that of the CPU.
"""

import argparse
import io
import json
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import fastavro
import numpy as np
import tensorflow as tf
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from rig import report
from windows import BATCH, BATCHES, FEATURES, PARTITION, build, chunk

from millrace.app.settings.sections.records import RecordsSettings, to_decoder
from millrace.consumers.handoff import JOINED_RECORDS
from millrace.consumers.records import Chunk
from millrace.pipelines.formats import Decoder
from millrace.pipelines.stream.assemble import AssembleOptions, Assembler
from millrace.pipelines.stream.decode import decode_chunk
from millrace.training.model.learner import Learner, LearnerOptions
from millrace.training.model.setup.strategy import DeviceOptions

KINDS = ("click", "view", "cart", "order", "refund", "search", "login", "logout", "scroll", "impression")
SECTION: Mapping[str, Any] = {
    "features": {"x": {"dtype": "float32", "shape": [FEATURES]}},
    "label": {"field": "y", "dtype": "float32"},
}
AVRO = {
    "type": "record",
    "name": "Event",
    "fields": [
        {"name": "user", "type": "long"},
        {"name": "type", "type": "string"},
        {"name": "x", "type": {"type": "array", "items": "double"}},
        {"name": "y", "type": "double"},
    ],
}


def message() -> tuple[bytes, Any]:
    """Return the descriptor of the message, and its class."""
    kind = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="event.proto", syntax="proto3")
    fields = (("user", kind.TYPE_INT64), ("type", kind.TYPE_STRING), ("x", kind.TYPE_DOUBLE), ("y", kind.TYPE_DOUBLE))
    event = file.message_type.add(name="Event")
    for number, (name, of) in enumerate(fields, 1):
        label = kind.LABEL_REPEATED if name == "x" else kind.LABEL_OPTIONAL
        event.field.add(name=name, number=number, type=of, label=label)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    made = message_factory.GetMessageClass(pool.FindMessageTypeByName("Event"))
    return descriptor_pb2.FileDescriptorSet(file=[file]).SerializeToString(), made


def rows_of(records: int) -> list[dict[str, Any]]:
    """Make records up, a tenth of each kind."""
    random = np.random.default_rng(7)
    x, kinds = random.normal(size=(records, FEATURES)).round(4), random.integers(0, len(KINDS), records)
    return [
        {"user": at % 20_000, "type": KINDS[kind], "x": row, "y": float(sum(row) > 0)}
        for at, (row, kind) in enumerate(zip(x.tolist(), kinds.tolist(), strict=True))
    ]


def written(rows: Sequence[Mapping[str, Any]], folder: Path) -> dict[str, tuple[list[bytes], dict[str, Any]]]:
    """Return the records in each format, with the settings of the format."""
    descriptors, made = message()
    (folder / "event.avsc").write_text(json.dumps(AVRO))
    (folder / "event.pb").write_bytes(descriptors)
    schema = fastavro.parse_schema(AVRO)

    def avro(row: Mapping[str, Any]) -> bytes:
        out = io.BytesIO()
        fastavro.schemaless_writer(out, schema, dict(row))
        return out.getvalue()

    return {
        "json": ([json.dumps(row).encode() for row in rows], {}),
        "avro": ([*map(avro, rows)], {"avro": {"schema_file": str(folder / "event.avsc")}}),
        "protobuf": (
            [made(**row).SerializeToString() for row in rows],
            {"protobuf": {"descriptor": str(folder / "event.pb")}},
        ),
    }


def learnt(chunks: Sequence[Chunk], decoder: Decoder, learner: Learner) -> float:
    """Learn all records that match; return the CPU's seconds."""
    began = time.process_time()
    options = AssembleOptions(batch_size=BATCH, batches_per_call=BATCHES)
    assembler = Assembler(learner.options.schema, options, [PARTITION], 1)
    for each in chunks:
        assembler.add(decode_chunk(each, decoder))
        while (block := assembler.take(0.0)) is not None:
            rows = tf.nest.map_structure(tf.constant, block.rows)
            learner.learn(rows._replace(features=rows.features, labels=rows.labels["y"]))
    return time.process_time() - began


def main() -> None:
    """Read the options, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=131_072)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    ratios, took = dict[str, float](), dict[str, dict[str, float]]()
    with tempfile.TemporaryDirectory() as folder:
        for form, (values, own) in written(rows_of(given.records), Path(folder)).items():
            # As the service joins them in a backlog.
            steps = range(0, len(values), JOINED_RECORDS)
            chunks = [chunk(values[at : at + JOINED_RECORDS], at) for at in steps]
            section = {**SECTION, **own, "format": form}
            plain = to_decoder(RecordsSettings.model_validate(section))
            where = to_decoder(RecordsSettings.model_validate({**section, "where": {"type": "impression"}}))
            options = LearnerOptions(schema=plain.schema, batch_size=BATCH, devices=DeviceOptions(replicas=1), seed=1)
            learner = Learner(build, None, options)
            turns = [(learnt(chunks, plain, learner), learnt(chunks, where, learner)) for _ in range(given.rounds + 1)]
            # Of each turn by itself: what slows the machine slows both. The first traces the call.
            ratios[form] = statistics.median(one / other for one, other in turns[1:])
            a_record = [statistics.median(each) / given.records * 1e6 for each in zip(*turns[1:], strict=True)]
            took[form] = {"plain": round(a_record[0], 2), "where": round(a_record[1], 2)}
    report(
        {"where_over_plain": round(min(ratios.values()), 2)},
        {**{f"where_over_plain_{form}": round(ratio, 2) for form, ratio in ratios.items()}, "cpu_us_a_record": took},
    )


if __name__ == "__main__":
    main()
