"""Topics that nobody described, as a new user meets them: `init`, then `validate`, then learning all that there is."""

import asyncio
import io
import json
import random
import struct
from base64 import b64encode
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import fastavro
import pytest
from aiokafka import AIOKafkaProducer
from google.protobuf.message_factory import GetMessageClass

from millrace.pipelines.formats.shared.descriptors import compiled_texts, message_of
from tests.conftest import MakeTopic
from tests.integration.test_init import millrace
from tests.pipelines.formats.image.image_verdicts import png
from tests.schema_registry import SchemaRegistry

pytestmark = [pytest.mark.slow, pytest.mark.broker, pytest.mark.timeout(600)]
COUNT = 600
Header = tuple[str, bytes]


@dataclass(frozen=True)
class Unknown:
    """Records of a topic, and what is known of it."""

    values: Sequence[bytes]
    label: str
    task: str
    features: set[str]
    format: str = "json"
    headers: Sequence[Header | None] = ()
    options: tuple[str, ...] = ()
    files: dict[str, str] = field(default_factory=dict)


def rows() -> Iterator[tuple[int, random.Random]]:
    draw = random.Random(3)
    return ((number, draw) for number in range(COUNT))


def as_json(objects: Sequence[Any]) -> list[bytes]:
    return [json.dumps(one).encode() for one in objects]


def nested(_: Any) -> Unknown:
    made = [
        {
            "order": {"id": f"o-{n}", "lines": [{"price": draw.uniform(1, 9)} for _ in range(draw.randrange(4))]},
            "buyer": {"age": draw.randrange(18, 90), "land": draw.choice(["DE", "NO"])},
            "label": draw.randrange(2),
        }
        for n, draw in rows()
    ]
    return Unknown(as_json(made), "label", "binary", {"order.lines[].price", "buyer.age", "buyer.land"})


AVRO: dict[str, Any] = {
    "type": "record",
    "name": "Click",
    "fields": [
        {
            "name": "user",
            "type": {"type": "record", "name": "User", "fields": [{"name": "age", "type": ["null", "int"]}]},
        },
        {
            "name": "lines",
            "type": {
                "type": "array",
                "items": {"type": "record", "name": "Line", "fields": [{"name": "price", "type": "double"}]},
            },
        },
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "clicked", "type": "boolean"},
    ],
}


def avro_by_registry(registry: SchemaRegistry) -> Unknown:
    number, parsed, values = registry.register("clicks-value", AVRO), fastavro.parse_schema(dict(AVRO)), []
    for n, draw in rows():
        out = io.BytesIO(struct.pack(">bI", 0, number))
        out.seek(5)
        lines = [{"price": draw.uniform(1, 9)} for _ in range(draw.randrange(4))]
        row = {"user": {"age": draw.choice([None, 30, 41])}, "lines": lines, "at": 1_790_000_000_000 + n}
        fastavro.schemaless_writer(out, parsed, {**row, "clicked": draw.random() < 0.5})
        values.append(out.getvalue())
    options = ("--registry", registry.url, "--event-time", "at")
    return Unknown(values, "clicked", "binary", {"user.age", "lines[].price"}, "avro", options=options)


PROTO = """
syntax = "proto3";
message Item { double price = 1; }
message Order { string order_id = 1; repeated Item items = 2; map<string, int32> counts = 3; bool label = 4; }
"""


def protobuf(_: Any) -> Unknown:
    order = GetMessageClass(message_of(compiled_texts({"o.proto": PROTO}, "o.proto", "test"), "Order"))
    made = [
        order(
            order_id=f"o-{n}",
            items=[{"price": draw.random()} for _ in range(draw.randrange(3))],
            counts={"seen": draw.randrange(9)},
            label=draw.random() < 0.5,
        )
        for n, draw in rows()
    ]
    values = [one.SerializeToString() for one in made]
    options = ("--schema", "order.proto", "--message", "Order")
    features = {"items[].price", "counts.seen"}
    return Unknown(values, "label", "binary", features, "protobuf", options=options, files={"order.proto": PROTO})


def iso_times(_: Any) -> Unknown:
    made = [
        {"at": f"2026-11-{1 + n % 28:02}T10:00:{n % 60:02}.25+01:00", "temperature": draw.gauss(20, 3), "y": n % 2}
        for n, draw in rows()
    ]
    return Unknown(as_json(made), "y", "binary", {"temperature"}, options=("--event-time", "at"))


def regression_with_outliers(_: Any) -> Unknown:
    made = [
        {
            "x": (x := draw.gauss(0, 1)),
            "size": 1e9 if n % 97 == 0 else draw.random(),
            "target": 1e8 if n % 89 == 0 else x * 3,
        }
        for n, draw in rows()
    ]
    return Unknown(as_json(made), "target", "number", {"x", "size"})


def text_classes(_: Any) -> Unknown:
    made = [{"amount": draw.random(), "label": draw.choice(["spam", "news", "mail"])} for _, draw in rows()]
    return Unknown(as_json(made), "label", "named_classes", {"amount"})


WORDS = ["good", "bad", "film", "plot", "dull", "what", "a", "waste", "joy"]


def free_text(_: Any) -> Unknown:
    made = [
        {"id": n, "review": " ".join(draw.choices(WORDS, k=8)) + f" {n}", "label": draw.randrange(2)}
        for n, draw in rows()
    ]
    return Unknown(as_json(made), "label", "binary", {"review"})


def plain_text_with_a_label_in_a_header(_: Any) -> Unknown:
    values = [f"{' '.join(draw.choices(WORDS, k=6))} {n}".encode() for n, draw in rows()]
    headers = [("label", [b"good", b"bad"][n % 2]) for n in range(COUNT)]
    return Unknown(values, "$header.label", "named_classes", {"$value"}, "text", headers)


def images(_: Any) -> Unknown:
    values = [png([bytes([128 * (n % 2) + draw.randrange(99)] * 9)] * 7, 9) for n, draw in rows()]
    headers = [("label", b"%d" % (n % 2)) for n in range(COUNT)]
    return Unknown(values, "$header.label", "binary", {"$value"}, "bytes", headers)


def images_in_json(_: Any) -> Unknown:
    photos = [b64encode(png([bytes([128 * (n % 2)] * 9)] * 7, 9)).decode() for n in range(COUNT)]
    return Unknown(as_json([{"photo": photo, "y": n % 2} for n, photo in enumerate(photos)]), "y", "binary", {"photo"})


TOPICS: tuple[Callable[[Any], Unknown], ...] = (
    avro_by_registry,
    plain_text_with_a_label_in_a_header,
)
MORE_TOPICS: tuple[Callable[[Any], Unknown], ...] = (
    *(nested, protobuf, iso_times, regression_with_outliers, text_classes, free_text, images, images_in_json),
)
"""What others show together: nested fields in Avro, JSON with lists in `test_init`, pictures inside JSON in
`test_images`, named classes and text without a key by a label in a header; or what the drafts of
`tests/app/tools/test_init.py` show without a broker."""


async def send(broker: str, topic: str, unknown: Unknown) -> None:
    async with AIOKafkaProducer(bootstrap_servers=broker) as producer:
        headers = unknown.headers or [None] * COUNT
        for value, header in zip(unknown.values, headers, strict=True):
            await producer.send(topic, value, headers=[] if header is None else [header])


@pytest.mark.parametrize(
    "make",
    [*TOPICS, *(pytest.param(make, marks=pytest.mark.nightly) for make in MORE_TOPICS)],
    ids=lambda make: make.__name__,
)
def test_a_topic_that_nobody_described_is_drafted_validated_and_learnt(
    make: Callable[[Any], Unknown], broker: str, topic: MakeTopic, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    name = topic()
    unknown = make(request.getfixturevalue("registry") if make is avro_by_registry else None)
    asyncio.run(send(broker, name, unknown))
    for file, text in unknown.files.items():
        (tmp_path / file).write_text(text)
    where = ("--bootstrap-servers", broker, "--topic", name, "--name", "mine")
    by_name = () if unknown.label.endswith(("label", "y", "target", "clicked")) else ("--label", unknown.label)
    done = millrace("init", *where, *by_name, *unknown.options, "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert (report["format"], report["label"], report["task"]) == (unknown.format, unknown.label, unknown.task)
    assert ({*report["features"]}, report["set_aside"]) == (unknown.features, {})
    validated = millrace("validate", "-c", "millrace.yaml", cwd=tmp_path)
    assert validated.returncode == 0, validated.stdout + validated.stderr
    ran = millrace("run", "-c", "millrace.yaml", "--until", "now", cwd=tmp_path)
    assert ran.returncode == 0, ran.stderr
    newest = max(tmp_path.glob("checkpoints/mine/checkpoints/*/ledger.json"))
    ledger = json.loads(newest.read_text())["partitions"].values()
    assert (sum(one["learnt"] for one in ledger), [one["set_aside"] for one in ledger]) == (COUNT, [{}] * len(ledger))
