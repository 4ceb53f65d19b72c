"""Batches: requests that come at the same time become one call of the model, and each gets its own rows back.

Owns the requests that wait, on the HTTP side's loop, and one thread, `model`, on which calls run one after another. A
batch closes when it has its rows, or when its first request has waited; while a call runs, those that come meanwhile
gather. Nothing is dropped: the requests in progress are bounded where they come in (`PredictGate`). If a call of
several requests fails, each is called alone, so that one request cannot fail another. `close` ends the thread after the
call that runs.
"""

import asyncio
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from millrace.app.settings.sections.serve import BatchSettings
from millrace.app.tools.serve.json_tensors import SPLITS, VALUES, Array, Signature
from millrace.app.tools.serve.loaded_version import LoadedVersion
from millrace.app.tools.serve.predict_requests import PredictRequest
from millrace.app.tools.serve.serving_metrics import ServingMeter

Answers = Mapping[str, Array]


@dataclass(slots=True, eq=False)
class _WaitingRequest:
    """One request that waits."""

    request: PredictRequest
    answer: asyncio.Future[Answers]


@dataclass(slots=True, eq=False)
class _Batch:
    """Requests for one call."""

    version: LoadedVersion
    signature: Signature
    asked: list[_WaitingRequest] = field(default_factory=list)
    rows: int = 0
    due: bool = False


class Batcher:
    """Answers requests in batches. All methods on one loop."""

    def __init__(self, settings: BatchSettings, meter: ServingMeter) -> None:
        self._settings, self._meter = settings, meter
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="model")
        self._open: dict[Any, _Batch] = {}
        self._waiting: list[_Batch] = []
        self._running: asyncio.Task[None] | None = None
        self.call_began: float | None = None
        """When the call began that runs now, by the monotonic clock; None while none runs."""

    async def ask(self, version: LoadedVersion, request: PredictRequest) -> Answers:
        """Return the answers to one request. Raises ServingError."""
        loop = asyncio.get_running_loop()
        asked = _WaitingRequest(request, loop.create_future())
        alone = request.rows is None or not request.signature.joins or request.rows >= self._settings.rows
        # For two requests to be joined, the shapes behind the rows must be the same.
        trailing = tuple(array.shape[1:] for _, array in sorted(request.tensors.items()))
        key = None if alone else (id(version), request.signature.name, trailing)

        # An open batch that has no room for it is due, and a new one begins.
        batch = None if key is None else self._open.get(key)
        if batch is not None and batch.rows + (request.rows or 0) > self._settings.rows:
            self._open.pop(key)
            batch.due, batch = True, None
        if batch is None:
            batch = _Batch(version, request.signature, due=key is None)
            self._waiting.append(batch)
            if key is not None:
                self._open[key] = batch
                loop.call_later(self._settings.wait, self._close, batch)
        batch.asked.append(asked)
        batch.rows += request.rows or 1
        if batch.rows >= self._settings.rows and key is not None:
            self._open.pop(key)
            batch.due = True
        if batch.due:
            loop.call_soon(self._next)
        return await asked.answer

    def close(self) -> None:
        """End the thread; returns at once."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _close(self, batch: _Batch) -> None:
        """Make a batch due: it is called as soon as no other call runs. Until then requests may still join it."""
        batch.due = True
        self._next()

    def _next(self) -> None:
        """Begin the next call, if none runs and a batch is due."""
        if self._running is not None:
            return
        batch = next((each for each in self._waiting if each.due), None)
        if batch is None:
            return
        self._waiting.remove(batch)
        for key in [key for key, each in self._open.items() if each is batch]:
            del self._open[key]
        self._running = asyncio.get_running_loop().create_task(self._run(batch))

    async def _run(self, batch: _Batch) -> None:
        self.call_began = time.monotonic()
        try:
            asked = [each for each in batch.asked if not each.answer.done()]  # its client may have left
            if not asked:
                return
            requests = [each.request for each in asked]
            loop = asyncio.get_running_loop()
            found = await loop.run_in_executor(self._thread, _called, batch.version, batch.signature, requests)
            self._meter.called(sum(request.rows or 1 for request in requests))
            for each, outcome in zip(asked, found, strict=True):
                if each.answer.done():
                    continue
                if isinstance(outcome, Exception):
                    each.answer.set_exception(outcome)
                else:
                    each.answer.set_result(outcome)
        finally:
            self.call_began = self._running = None
            self._next()


def _called(version: LoadedVersion, signature: Signature, requests: list[PredictRequest]) -> list[Answers | Exception]:
    """Call the model for all requests at once, or each alone where that fails. The thread `model`."""
    if len(requests) > 1:
        try:
            answers = version.call(signature, _joined(signature, requests))
            return list(_parted(answers, [request.rows or 0 for request in requests]))
        except Exception:  # noqa: BLE001, S110 - one of them is at fault, and called alone it says why
            pass
    found: list[Answers | Exception] = []
    for request in requests:
        try:
            found.append(version.call(signature, request.tensors))
        except Exception as error:  # noqa: BLE001 - the request gets it; the server goes on
            found.append(error)
    return found


def _joined(signature: Signature, requests: list[PredictRequest]) -> dict[str, Array]:
    """Return the rows of all requests one after another; row splits go on where those before end."""
    joined: dict[str, Array] = {}
    for name in signature.inputs:
        arrays = [request.tensors[name] for request in requests]
        feature = name.removesuffix(SPLITS)
        if feature in signature.ragged and feature != name:
            ends = np.cumsum([0, *(len(request.tensors[feature + VALUES]) for request in requests)])
            parts = [array[:-1] + end for array, end in zip(arrays, ends, strict=False)]
            joined[name] = np.concatenate([*parts, ends[-1:]]).astype(np.int64)
        else:
            joined[name] = np.concatenate(arrays)
    return joined


def _parted(answers: Answers, rows: list[int]) -> Iterable[Answers]:
    """Yield each request's rows. ValueError where the model gave another number of rows than it was given."""
    total = sum(rows)
    if any(array.ndim == 0 or array.shape[0] != total for array in answers.values()):
        raise ValueError("the answers are not one a row")
    begin = 0
    for count in rows:
        yield {name: array[begin : begin + count] for name, array in answers.items()}
        begin += count
