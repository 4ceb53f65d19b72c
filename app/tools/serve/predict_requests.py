"""The body of a predict request as tensors, and the answer's tensors as a body, in TF Serving's two formats and ours.

Row format: `instances`, a list of rows; each is an object of its features, or the value itself where the signature has
one input. Column format: `inputs`, the columns by name. A ragged feature comes as a list a row in either format, or as
TF Serving has it in the column format: its values and its row splits, under their own names. Our own format, `records`,
is read by `record_inputs`.
"""

import difflib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain
from typing import Any

import numpy as np

from millrace.app.tools.serve.json_tensors import (
    BASE64,
    DEFAULT,
    SPLITS,
    VALUES,
    Array,
    ServingError,
    Signature,
    TensorFacts,
    Where,
    bad_request,
    described,
    read_tensor,
    written,
)
from millrace.app.tools.serve.memory.sequence_inputs import ROWS, SequenceInputs
from millrace.app.tools.serve.record_inputs import MARKED_BYTES, RECORDS, RecordInputs, marked
from millrace.consumers.rounded import cut_list

COLUMNS = "inputs"
MARKS = (f'"{RECORDS}"'.encode(), b"\\u", b"\0")
"""One of these is in the body of each request that has records: JSON may escape their name, and UTF-16 has zeros."""
_SIGNATURE = "signature_name"
_SHOWN = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictRequest:
    """What a request asks: one call's tensors, and the format of its answer."""

    signature: Signature
    by_row: bool
    tensors: Mapping[str, Array]
    rows: int | None
    """How many there are; None if the columns do not agree, so that nothing may be joined to them."""
    features: Mapping[str, Array] | None = None
    """The features of the records of which the server has made sequences; None where the tensors are the features."""


def read_request(
    body: bytes, signatures: Mapping[str, Signature], records: RecordInputs | SequenceInputs | str
) -> PredictRequest:
    """Return the request in a body. Raises ServingError (400), which says where it is wrong.

    `records` reads records as they are in Kafka; a text says why the version has nothing that does. With a memory of
    keys it also reads the features of records, of which it makes sequences.
    """
    document = _document(body)
    name = document.get(_SIGNATURE) or DEFAULT
    if not isinstance(name, str):
        raise bad_request(f"'{_SIGNATURE}' key must be a string value")
    if name not in signatures:
        known = ", ".join(sorted(signatures))
        raise bad_request(f'Serving signature name: "{name[:100]}" not found in signature def; there are: {known}')
    signature = signatures[name]
    forms = [form for form in (ROWS, COLUMNS, RECORDS) if form in document]
    if len(forms) > 1:
        raise bad_request(f"the request has both '{forms[0]}' and '{forms[1]}'; send one of them")
    if isinstance(records, SequenceInputs):
        return _with_memory(body, document, signature, records)
    if forms == [RECORDS]:
        if isinstance(records, str):
            raise bad_request(f"no '{RECORDS}' are taken: {records}, or send features under '{ROWS}'")
        if signature.name != DEFAULT:
            raise bad_request(f"'{RECORDS}' are for the signature {DEFAULT}; leave '{_SIGNATURE}' out")
        tensors = records.read(body, document)
        return PredictRequest(signature=signature, by_row=True, tensors=tensors, rows=len(document[RECORDS]))
    if ROWS in document:
        tensors = _from_rows(document[ROWS], signature)
        return PredictRequest(signature=signature, by_row=True, tensors=tensors, rows=len(document[ROWS]))
    if COLUMNS not in document:
        raise bad_request(f"Missing '{COLUMNS}' or '{ROWS}' key")
    tensors = _from_columns(document[COLUMNS], signature)
    return PredictRequest(signature=signature, by_row=False, tensors=tensors, rows=_rows_of(tensors, signature))


def _with_memory(
    body: bytes, document: Mapping[str, Any], signature: Signature, records: SequenceInputs
) -> PredictRequest:
    """Return the request of single records, of which the server makes sequences."""
    form = ROWS if ROWS in document else RECORDS
    if form not in document or COLUMNS in document or signature.name != DEFAULT:
        raise bad_request(
            f"the server makes sequences itself (serve.memory): send the newest record of each key under '{ROWS}' or "
            f"'{RECORDS}', and neither '{COLUMNS}' nor '{_SIGNATURE}'"
        )
    decoded = records.read(body, document, form)
    return PredictRequest(
        signature=signature,
        by_row=True,
        tensors=records.tensors(decoded),
        rows=len(document[form]),
        features=decoded.features,
    )


def write_answer(request: PredictRequest, answers: Mapping[str, Array]) -> bytes:
    """Return the answer's body in the request's format; a single output goes without its name."""
    plain = {name: written(array, name) for name, array in answers.items()}
    only = next(iter(plain.values())) if len(plain) == 1 else None
    if not request.by_row:
        return json.dumps({"outputs": plain if only is None else only}).encode()
    for name, array in answers.items():
        if array.ndim == 0 or array.shape[0] != request.rows:
            raise bad_request(
                f"the output {name!r} is not one value a row; ask in the column format, with '{COLUMNS}' instead of "
                f"'{ROWS}'"
            )
    if only is None:
        only = [dict(zip(plain, row, strict=True)) for row in zip(*plain.values(), strict=True)]
    return json.dumps({"predictions": only}).encode()


def _document(body: bytes) -> dict[str, Any]:
    try:
        document = json.loads(body, object_pairs_hook=marked if len(body) <= MARKED_BYTES else None)
    except (ValueError, RecursionError) as error:
        why = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise bad_request(f"JSON Parse error: {why}") from None
    if not isinstance(document, dict):
        raise bad_request(f'the request is no object; send {{"{ROWS}": […]}} or {{"{COLUMNS}": {{…}}}}')
    return document


def _from_rows(rows: Any, signature: Signature) -> dict[str, Array]:
    if not isinstance(rows, list):
        raise bad_request(f"Expecting '{ROWS}' to be a list")
    if not rows:
        raise bad_request(f"No values in '{ROWS}'")
    features = signature.features
    if not _is_row(rows[0]):
        if len(features) != 1:
            raise bad_request(
                f"{ROWS}[0] is no object, and the model takes several features; send an object a row with "
                f"{_listed(features)}"
            )
        (name,) = features
        for index, row in enumerate(rows):
            if _is_row(row):
                raise bad_request(f"{ROWS}[{index}] is an object, and those before it are values; send one kind")
        return _columns({name: rows}, signature, _row_place(""))
    for index, row in enumerate(rows):
        if not _is_row(row):
            raise bad_request(f"{ROWS}[{index}] is no object, and those before it are; send one kind")
        if row.keys() != features.keys():
            raise _other_features(row, signature, f"{ROWS}[{index}]")
    columns: dict[str, Any] = {name: [row[name] for row in rows] for name in features}
    return {
        key: tensor
        for name, column in columns.items()
        for key, tensor in _columns({name: column}, signature, _row_place(f".{name}")).items()
    }


def _from_columns(given: Any, signature: Signature) -> dict[str, Array]:
    features = signature.features
    if not _is_row(given):
        if len(features) != 1:
            raise bad_request(
                f"'{COLUMNS}' is no object, and the model takes several features; send an object with "
                f"{_listed(features)}"
            )
        (name,) = features
        return _columns({name: given}, signature, _column_place(""))
    tensors: dict[str, Array] = {}
    raw = {name for feature in signature.ragged for name in (feature + VALUES, feature + SPLITS)} & given.keys()
    for name in raw:
        tensors[name] = read_tensor(given[name], signature.inputs[name], _column_place(f".{name}"))
    present = {name: column for name, column in given.items() if name not in raw}
    missing = features.keys() - present.keys() - {name for name in features if {name + VALUES, name + SPLITS} <= raw}
    if missing or present.keys() - features.keys():
        raise _other_features(given, signature, f"'{COLUMNS}'", missing)
    for name, column in present.items():
        tensors |= _columns({name: column}, signature, _column_place(f".{name}"))
    for feature in signature.ragged:
        splits, values = tensors[feature + SPLITS], tensors[feature + VALUES]
        whole = splits.size and splits[0] == 0 and splits[-1] == len(values) and bool((np.diff(splits) >= 0).all())
        if not whole:
            raise bad_request(
                f"'{COLUMNS}'.{feature}{SPLITS} are no row splits of {len(values)} values; they begin with 0, never "
                "fall, and end with the number of values"
            )
    return tensors


def _columns(columns: Mapping[str, Any], signature: Signature, where: Where) -> dict[str, Array]:
    """Return the tensors of one column: two of a ragged one."""
    ((name, column),) = columns.items()
    facts = signature.features[name]
    if name not in signature.ragged:
        tensors = {name: read_tensor(column, facts, where)}
    else:
        tensors = _ragged(name, column, facts, where)
    # The model would fail the whole call for a text that is none of the feature's classes.
    listed = signature.classes.get(name)
    if listed is not None:
        known = {text.encode() for text in listed}
        for at, text in np.ndenumerate(tensors[name] if name in tensors else tensors[name + VALUES]):
            if text not in known:
                some = ", ".join(sorted(listed)[:_SHOWN])
                raise bad_request(f"{where(at)} is a text that the model does not know; the feature is one of: {some}")
    return tensors


def _ragged(name: str, column: Any, facts: TensorFacts, where: Where) -> dict[str, Array]:
    if not isinstance(column, list):
        raise bad_request(f"{where(())} is no list; send a list of {facts.dtype} for each row")
    for index, row in enumerate(column):
        if not isinstance(row, list):
            raise bad_request(f"{where([index])} is no list, and the model takes a list of {facts.dtype} there")
    splits = [0, *accumulate(map(len, column))]

    def place(at: Sequence[int]) -> str:
        if not at:
            return where(())
        row = int(np.searchsorted(splits, at[0], side="right")) - 1
        return where([row, at[0] - splits[row], *at[1:]])

    values = read_tensor([*chain.from_iterable(column)], facts, place)
    return {name + VALUES: values, name + SPLITS: np.array(splits, np.int64)}


def _rows_of(tensors: Mapping[str, Array], signature: Signature) -> int | None:
    """Return how many rows all columns have; ServingError where features of a manifest do not agree, None elsewhere."""
    counts: dict[str, int | None] = {}
    for name in signature.features:
        if name in signature.ragged:
            counts[name] = len(tensors[name + SPLITS]) - 1
        else:
            counts[name] = tensors[name].shape[0] if tensors[name].ndim else None
    some = set(counts.values())
    if len(some) == 1:
        return some.pop()
    if signature.joins:
        told = ", ".join(f"{name}: {count}" for name, count in sorted(counts.items()))
        raise bad_request(f"the columns in '{COLUMNS}' have different numbers of rows: {told}")
    return None


def _is_row(value: Any) -> bool:
    """Return whether a value is an object of features, and not bytes."""
    return isinstance(value, dict) and value.keys() != {BASE64}


def _row_place(name: str) -> Where:
    def where(at: Sequence[int]) -> str:
        if not at:
            return f"{ROWS}[*]{name}"
        return f"{ROWS}[{at[0]}]{name}" + "".join(f"[{index}]" for index in at[1:])

    return where


def _column_place(name: str) -> Where:
    return lambda at: f"{COLUMNS}{name}" + "".join(f"[{index}]" for index in at)


def _other_features(
    given: Mapping[str, Any], signature: Signature, where: str, missing: set[str] | None = None
) -> ServingError:
    """Return the error of an object whose features are not those of the model: missing ones, then unknown ones."""
    features = signature.features
    absent = sorted(features.keys() - given.keys() if missing is None else missing)
    pairs = {name + end for name in signature.ragged for end in (VALUES, SPLITS)}
    unknown = sorted(name[:100] for name in given.keys() - features.keys() - pairs)
    texts = [f"the feature {name!r} is missing ({described(features[name])})" for name in absent]
    for name in unknown[:_SHOWN]:
        similar = difflib.get_close_matches(name, features, 1)
        texts.append(f"{name!r} is no feature of the model" + (f"; did you mean {similar[0]!r}?" if similar else ""))
    return bad_request(f"{where}: {'; '.join(texts)}. The model takes: {_listed(features)}")


def _listed(features: Mapping[str, TensorFacts]) -> str:
    return cut_list(sorted(features), _SHOWN)
