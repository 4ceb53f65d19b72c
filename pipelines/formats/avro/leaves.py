"""Single values of Avro as Arrow arrays, of the types that fields are read as.

Pure functions of lanes. A number that does not fit, or text that is none, shows in the buffer.
"""

import decimal
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millrace.consumers.records import Int64s
from millrace.pipelines.formats.avro.lanes import Lanes
from millrace.pipelines.formats.avro.nodes import AvroScalar
from millrace.pipelines.formats.shared.arrow_columns import Show

Read = Callable[[Lanes, int], pa.Array]
"""Reads the values that begin so many bytes behind the lanes; those of varying length move the lanes behind it."""

_INTS = np.iinfo(np.int32)
_EXACT = 2**53
_LARGEST = 2**63 - 1
_A_SECOND = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}
_LOGICAL = {
    f"{clock}timestamp-{name}": unit
    for clock in ("", "local-")
    for name, unit in (("millis", "ms"), ("micros", "us"), ("nanos", "ns"))
}
_POWERS = 22
"""Powers of ten up to this one are exact in a float64."""


def reader_of(node: AvroScalar, wanted: pa.DataType, source: str, unit: str | None = None) -> Read | None:
    """Return what reads a scalar as a type; None where the type does not hold such values.

    `unit`: that of an event time, to which a logical time is converted.
    """
    if unit in _A_SECOND and node.kind == "long" and (own := _LOGICAL.get(node.logical or "")) is not None:
        return _time(_A_SECOND[own], _A_SECOND[unit], wanted, source)
    if pa.types.is_floating(wanted):
        return _floating(node, wanted, source)
    if pa.types.is_int64(wanted):
        return {"int": _small_integer, "long": _integer}.get(node.kind)
    if pa.types.is_boolean(wanted):
        return _boolean if node.kind == "boolean" else None
    if pa.types.is_binary(wanted):
        return _text(node)
    return None


def _floating(node: AvroScalar, wanted: pa.DataType, source: str) -> Read | None:
    single = pa.types.is_float32(wanted)
    target = np.float32 if single else np.float64

    def whole(lanes: Lanes, _offset: int) -> pa.Array:
        numbers = _small(lanes) if node.kind == "int" else lanes.number()
        return pa.array(numbers.astype(target))

    def same(lanes: Lanes, offset: int) -> pa.Array:
        return pa.array(lanes.gather("<f4" if node.kind == "float" else "<f8", offset).astype(target, copy=False))

    def narrowed(lanes: Lanes, offset: int) -> pa.Array:
        return pa.array(_narrow(lanes.gather("<f8", offset), lanes, source))

    def quotients(lanes: Lanes, offset: int) -> pa.Array:
        values = _decimals_as_floats(*_spans(node, lanes, offset), lanes, node.scale)
        return pa.array(_narrow(values, lanes, source) if single else values)

    if _is_decimal(node):
        return quotients
    if node.kind in {"int", "long"}:
        return whole
    if node.kind == "double" and single:
        return narrowed
    return same if node.kind in {"float", "double"} else None


def _narrow(values: npt.NDArray[Any], lanes: Lanes, source: str) -> npt.NDArray[np.float32]:
    narrow = values.astype(np.float32)
    lost = np.isinf(narrow)
    if np.count_nonzero(lost):
        lost &= np.isfinite(values)
        lanes.buffer.overflow(source, lanes.record[lost])
    return narrow


def _integer(lanes: Lanes, _offset: int) -> pa.Array:
    return pa.array(lanes.number())


def _time(own: int, wished: int, wanted: pa.DataType, source: str) -> Read | None:
    """Return what reads a logical time in another unit; both are so many to a second."""

    def converted(lanes: Lanes, _offset: int) -> pa.Array:
        times = lanes.number()
        if pa.types.is_floating(wanted):
            return pa.array((times / own).astype(wanted.to_pandas_dtype()))
        if own >= wished:
            return pa.array(times // (own // wished))
        factor = wished // own
        large = np.abs(times // 2) > _LARGEST // 2 // factor
        lanes.buffer.show(source, lanes.record[large], Show.OUT_OF_RANGE)
        return pa.array(np.where(large, 0, times) * factor)

    return converted if pa.types.is_int64(wanted) or pa.types.is_floating(wanted) else None


def _small_integer(lanes: Lanes, _offset: int) -> pa.Array:
    return pa.array(_small(lanes))


def _small(lanes: Lanes) -> Int64s:
    """Read an `int`, which has 32 bits."""
    numbers = lanes.number()
    if len(numbers) and not (_INTS.min <= numbers.min() and numbers.max() <= _INTS.max):
        beyond = (numbers < _INTS.min) | (numbers > _INTS.max)
        lanes.kill(beyond)
        numbers[beyond] = 0
    return numbers


def _boolean(lanes: Lanes, offset: int) -> pa.Array:
    stored = lanes.gather("u1", offset)
    neither = np.greater(stored, np.uint8(1))
    if np.count_nonzero(neither):
        lanes.kill(neither)
    return pa.array(stored == 1)


def _text(node: AvroScalar) -> Read | None:
    def texts(lanes: Lanes, offset: int) -> pa.Array:
        read = _binary(*_spans(node, lanes, offset), lanes)
        return _checked(read, lanes) if node.kind == "string" else read

    def symbols(lanes: Lanes, _offset: int) -> pa.Array:
        numbers = lanes.number()
        beyond = (numbers < 0) | (numbers >= len(node.symbols))
        if np.count_nonzero(beyond):
            lanes.kill(beyond)
            numbers[beyond] = 0
        return words.take(pa.array(numbers))

    def spelled(lanes: Lanes, offset: int) -> pa.Array:
        read = _binary(*_spans(node, lanes, offset), lanes)
        return pa.array([_decimal(value, node.scale) for value in read.to_pylist()], pa.binary())

    words = pa.array([symbol.encode() for symbol in node.symbols], pa.binary())
    if _is_decimal(node):
        return spelled
    if node.kind == "enum":
        return symbols
    return texts if node.kind in {"string", "bytes", "fixed"} else None


def _is_decimal(node: AvroScalar) -> bool:
    return node.logical == "decimal" and node.kind in {"bytes", "fixed"}


def _spans(node: AvroScalar, lanes: Lanes, offset: int) -> tuple[Int64s, Int64s]:
    """Return where the bytes of a value are, and how many; move over those of varying length."""
    if node.size is not None:
        places, lengths = lanes.pos + offset, np.full(len(lanes), node.size, np.int64)
        if lanes.buffer.breaks:
            lengths[places >= lanes.buffer.zeros] = 0
            places = np.minimum(places, lanes.buffer.zeros)
        return places, lengths
    lengths = lanes.number()
    places = lanes.pos.copy()
    lanes.move(lengths)
    if lanes.buffer.breaks:
        # Where that broke a record, its lane stands behind all records.
        gone = lanes.pos != places + lengths
        places[gone], lengths[gone] = lanes.buffer.zeros, 0
    return places, lengths


def _binary(places: Int64s, lengths: Int64s, lanes: Lanes) -> pa.Array:
    """Return the bytes at these places."""
    count, data = len(places), lanes.buffer.data
    ends = places + lengths
    if (places[1:] >= ends[:-1]).all():
        # Ascending, so they and the gaps between them are one array over the joined bytes; every second one is taken.
        bounds = np.empty(2 * count + 1, np.int32)
        bounds[:-1:2], bounds[1::2], bounds[-1] = places, ends, ends[-1] if count else 0
        every = pa.Array.from_buffers(pa.binary(), 2 * count, [None, pa.py_buffer(bounds), pa.py_buffer(data)])
        return every.take(pa.array(np.arange(0, 2 * count, 2)))
    bounds = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
    gathered = data[np.repeat(places - bounds[:-1], lengths) + np.arange(bounds[-1])]
    narrow = pa.py_buffer(bounds.astype(np.int32))
    return pa.Array.from_buffers(pa.binary(), count, [None, narrow, pa.py_buffer(gathered)])


def _checked(read: pa.Array, lanes: Lanes) -> pa.Array:
    """Break the records whose text is not UTF-8."""
    try:
        read.cast(pa.string())
    except pa.ArrowInvalid:
        lanes.kill(np.array([not _is_utf8(value) for value in read.to_pylist()], bool))
    return read


def _is_utf8(value: bytes) -> bool:
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True


def _decimals_as_floats(places: Int64s, lengths: Int64s, lanes: Lanes, scale: int) -> npt.NDArray[np.float64]:
    """Return the numbers nearest to decimals: big-endian two's complement, without their point."""
    unscaled = np.zeros(len(places), np.int64)
    longest = int(lengths.max(initial=0))
    if longest <= 8:
        data = lanes.buffer.data
        for at in range(longest):
            inside = lengths > at
            byte = data[places + np.where(inside, at, 0)].astype(np.int64)
            if at == 0:
                byte = byte.astype(np.uint8).astype(np.int8).astype(np.int64)
            unscaled = np.where(inside, (unscaled << 8) | (byte & 0xFF if at else byte), unscaled)
        if scale <= _POWERS and (np.abs(unscaled) < _EXACT).all():
            # Both are exact, so the quotient is the nearest there is.
            return unscaled / np.float64(10**scale)
    read = _binary(places, lengths, lanes).to_pylist()
    return np.array([float(_decimal(value, scale)) for value in read], np.float64)


def _decimal(value: bytes, scale: int) -> bytes:
    unscaled = int.from_bytes(value, "big", signed=True)
    exact = decimal.Context(prec=len(str(abs(unscaled))) + 1)
    return format(decimal.Decimal(unscaled).scaleb(-scale, exact), "f").encode()
