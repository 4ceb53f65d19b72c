"""FROZEN REFERENCE: Protobuf records to columns, by protobuf's own parser and by ptars. Share no code with the product.

A case of the service calls these in the process in which it measures the product, in turns.
"""

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import ptars
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from grpc_tools import protoc

NUMBERS = 6
PROTO = """
syntax = "proto3";
message User { int32 age = 1; string name = 2; string country = 3; }
message Click {
  int64 id = 1; double price = 2; float score = 3; int32 hour = 4; bool mobile = 5; string shop = 6; User user = 7;
  repeated float numbers = 8; int64 at = 9; float y = 10;
}
"""


def descriptors() -> bytes:
    """The descriptor set of a click: 10 fields, one of them a message of three."""
    with tempfile.TemporaryDirectory() as folder:
        source, made = Path(folder, "click.proto"), Path(folder, "set")
        source.write_text(PROTO)
        if protoc.main(["protoc", f"-I{folder}", f"--descriptor_set_out={made}", str(source)]):
            raise SystemExit("the message does not compile")
        return made.read_bytes()


def message_of(described: bytes) -> Any:
    """The class of a click."""
    pool = descriptor_pool.DescriptorPool()
    for file in descriptor_pb2.FileDescriptorSet.FromString(described).file:
        pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("Click"))


def records(count: int, message: Any) -> list[bytes]:
    """Clicks, made up."""
    random = np.random.default_rng(7)
    made = []
    for number, row in enumerate(random.normal(size=(count, NUMBERS)).astype(np.float32).tolist()):
        click = message(id=number, price=abs(row[0]), score=row[1], hour=number % 24, mobile=number % 2, numbers=row)
        click.shop, click.at, click.y = f"shop {number % 97}", 1_700_000_000_000 + number, float(row[0] > 0)
        click.user.age, click.user.name, click.user.country = number % 90, f"user {number % 997}", "DE"
        made.append(click.SerializeToString())
    return made


def by_record(message: Any) -> Callable[[Sequence[bytes]], int]:
    """Parse record by record, and make a list of each field and an array of it."""

    def parse(values: Sequence[bytes]) -> int:
        clicks = [message.FromString(value) for value in values]
        columns = {
            name: [getattr(click, name) for click in clicks]
            for name in ("id", "price", "score", "hour", "mobile", "shop", "numbers", "at", "y")
        }
        columns["age"] = [click.user.age for click in clicks]
        columns["country"] = [click.user.country for click in clicks]
        arrays = {name: np.array(column) for name, column in columns.items()}
        return len(arrays["id"])

    return parse


def by_ptars(message: Any) -> Callable[[Sequence[bytes]], int]:
    """Parse a chunk by ptars, whole messages."""
    handler = ptars.HandlerPool([message.DESCRIPTOR.file]).get_for_message(message.DESCRIPTOR)

    def parse(values: Sequence[bytes]) -> int:
        rows: int = handler.list_to_record_batch(list(values)).num_rows
        return rows

    return parse
