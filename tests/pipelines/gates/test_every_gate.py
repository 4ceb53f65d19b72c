"""What every gate must do: hold from the first chunk at fault on, all or nothing, until it is released."""

from collections.abc import Callable, Mapping
from dataclasses import replace

import pytest

from millrace.consumers.reasons import Reason
from millrace.consumers.records import Partition
from millrace.pipelines.formats import make_decoder
from millrace.pipelines.gates.flood import FloodGate, PauseAboveSettings
from millrace.pipelines.gates.gate import Gate, HeldBy, open_gates
from millrace.pipelines.gates.schema_gate import SchemaGate
from millrace.pipelines.registry.schemas import KeptSchemas
from millrace.pipelines.schema import Field, Schema
from millrace.pipelines.stream.decode import Decoded, Refused, decode_chunk
from millrace.training.ledger.interventions import Skip
from tests.pipelines.stream.test_decode import chunk_of

DECODER = make_decoder("json", Schema(features=(Field(name="id", source="id", dtype="int64"),)))
PARTITION, OTHER = Partition("clicks", 3), Partition("clicks", 4)
RECORDS = 200
WITHOUT_SCHEMAS = KeptSchemas(None)
GATES: Mapping[HeldBy, Callable[[], Gate]] = {
    HeldBy.SCHEMA: lambda: SchemaGate(WITHOUT_SCHEMAS, lambda _: None),
    HeldBy.FLOOD: lambda: FloodGate(PauseAboveSettings(share=0.05, over="60s")),
}
each_gate = pytest.mark.parametrize("by", sorted(GATES))


def good(start: int = 0, partition: Partition = PARTITION) -> Decoded:
    return replace(decode_chunk(chunk_of([b'{"id": 1}'] * RECORDS, start), DECODER), partition=partition)


def bad(by: HeldBy, start: int = 0) -> Decoded:
    """Return a chunk for which a gate holds: all is malformed, or of a schema that lacks the field."""
    if by is HeldBy.FLOOD:
        return decode_chunk(chunk_of([b"{"] * RECORDS * 3, start), DECODER)
    lacking = Refused(start + 7, Reason.MISSING, "id", 6, "the schema has no field 'id'")
    return replace(good(start), refused=(lacking,))


def test_each_way_to_be_held_by_records_is_a_gate_that_is_tried_here() -> None:
    assert GATES.keys() == {*HeldBy} - {HeldBy.DEAD_LETTERS, HeldBy.LABELS}


@each_gate
def test_a_gate_holds_the_chunk_at_fault_and_all_behind_it_until_it_is_released(by: HeldBy) -> None:
    gate = GATES[by]()
    gate.begin({PARTITION: 0, OTHER: 0})
    assert gate.admits(good())
    assert gate.held() is None
    assert not gate.let_pass({}), "it holds nothing"
    chunk = bad(by, RECORDS)
    for _ in range(3):
        assert not gate.admits(chunk)
        assert not gate.admits(good(partition=OTHER)), "nothing goes past what is held"
    held = gate.held()
    assert held is not None
    assert held.by is by
    assert held.why
    assert not held.why.endswith(".")
    assert gate.let_pass({})
    assert gate.held() is None
    assert gate.admits(chunk)
    assert gate.admits(good(partition=OTHER))


@each_gate
def test_a_new_stream_holds_nothing_and_judges_the_same_chunk_again(by: HeldBy) -> None:
    gate = GATES[by]()
    for _ in range(2):
        gate.begin({PARTITION: 0})
        assert gate.held() is None
        assert not gate.admits(bad(by))


@each_gate
def test_records_that_a_command_skips_hold_nothing_in_that_stream(by: HeldBy) -> None:
    skip = Skip(order="rewind-7", reason="bad", partition=PARTITION, start=0, end=3 * RECORDS)
    gate = GATES[by]()
    gate.begin({PARTITION: 0}, [skip])
    assert gate.admits(bad(by))
    gate.begin({PARTITION: 0})
    assert not gate.admits(bad(by))


@each_gate
def test_what_is_already_held_is_not_shown_to_a_later_gate(by: HeldBy) -> None:
    first, second = GATES[by](), FloodGate(PauseAboveSettings(share=0.05, over="60s"))
    admits = open_gates([first, second], {PARTITION: 0}, ())
    assert admits is not None
    assert admits(good())
    assert not admits(bad(by, RECORDS))
    assert second.positions() == {PARTITION: RECORDS}
    assert second.held() is None
    assert open_gates([], {PARTITION: 0}, ()) is None
