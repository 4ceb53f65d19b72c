"""The routes of TF Serving's REST API, and those of our own beside them. All on the HTTP side's loop.

`DOCUMENTED` lists them; docs/serving.md has the same table, and a test compares. Errors are `{"error": "…"}`.
"""

import asyncio
import json
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from functools import partial
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from millrace.app.tools.serve.batcher import Batcher
from millrace.app.tools.serve.follower import ExportFollower, VersionState
from millrace.app.tools.serve.json_tensors import DEFAULT, ServingError, bad_request
from millrace.app.tools.serve.loaded_version import LoadedVersion
from millrace.app.tools.serve.memory.topic_memory import TopicMemory
from millrace.app.tools.serve.predict_requests import MARKS, read_request, write_answer
from millrace.app.tools.serve.prediction_log import AnsweredRequest, PredictionLog

MODEL = "/v1/models/{name}"
WHICH = ("", "/versions/{version}")
DOCUMENTED: Mapping[str, str] = {
    f"GET {MODEL}": "TF Serving's",
    f"GET {MODEL}/metadata": "TF Serving's",
    f"POST {MODEL}:predict": "TF Serving's",
    f"GET {MODEL}/served": "ours",
    "GET /metrics": "ours",
    "GET /livez": "ours",
    "GET /readyz": "ours",
}
VERSION_HEADER = "millrace-version"
AGE_HEADER = "millrace-memory-age"
"""By how many seconds the memory of keys was older than the topic."""
_SMALL_BYTES = 16 * 1024
"""Of a body that is read on the loop: reading it takes less than a millisecond, and a thread costs as much."""
_READERS = 2
_KNOWN = ("number", "made_at", "records", "metrics", "positions", "inputs", "outputs", "classes", "checkpoint")
"""What `/served` shows of a manifest."""
T = TypeVar("T")


class PredictionRoutes:
    """The routes of one model."""

    def __init__(
        self,
        name: str,
        follower: ExportFollower,
        batcher: Batcher,
        timeout_s: float,
        *,
        memory: TopicMemory | None = None,
        log: PredictionLog | None = None,
    ) -> None:
        self._name, self._follower, self._batcher, self._timeout_s = name, follower, batcher, timeout_s
        self._memory, self._log = memory, log
        self._readers = ThreadPoolExecutor(_READERS, thread_name_prefix="json")

    def routes(self) -> list[Route]:
        """Return the routes, in the order in which they are tried."""
        found = []
        for which in WHICH:
            found += [
                Route(f"{MODEL}{which}/metadata", self.metadata, methods=["GET"]),
                Route(f"{MODEL}{which}:predict", self.predict, methods=["POST"]),
                Route(f"{MODEL}{which}:classify", self.examples, methods=["POST"]),
                Route(f"{MODEL}{which}:regress", self.examples, methods=["POST"]),
            ]
        found.append(Route(f"{MODEL}/served", self.served, methods=["GET"]))
        return found + [Route(f"{MODEL}{which}", self.status, methods=["GET"]) for which in WHICH]

    async def predict(self, request: Request) -> Response:
        """Answer with what the model says of the rows."""
        version = self._asked_for(request)
        while not version.enter():  # it was replaced and closed between these two lines
            version = self._asked_for(request)
        headers = {VERSION_HEADER: str(version.number)}
        known_to = _known_to(version, self._memory) if self._log is not None else {}
        age_s = None if self._memory is None else self._memory.age_s()
        if age_s is not None:
            headers[AGE_HEADER] = f"{age_s:.3f}"
        try:
            async with asyncio.timeout(self._timeout_s):
                body = await request.body()
                # Who may wait for a schema waits on a thread. The memory is never another's for long.
                waits = self._memory is not None or any(mark in body for mark in MARKS)
                large = len(body) > _SMALL_BYTES or (waits and getattr(version.records, "waits", False))
                asked = await self._run(partial(read_request, body, version.signatures, version.records), large=large)
                answers = await self._batcher.ask(version, asked)
                large = large or sum(array.nbytes for array in answers.values()) > _SMALL_BYTES
                answer = await self._run(partial(write_answer, asked, answers), large=large)
                if self._log is not None and asked.signature.name == DEFAULT:
                    answered = AnsweredRequest(
                        version=version.number,
                        request=asked,
                        answers=answers,
                        positions=known_to,
                        age_s=age_s,
                        at=time.time(),
                    )
                    self._log.offer(answered)
                return Response(answer, 200, headers, "application/json")
        except TimeoutError:
            text = f"the model did not answer within {self._timeout_s:g} s (serve.timeout)"
            raise ServingError(504, text, headers) from None
        except ServingError as error:
            error.headers.update(headers)
            raise
        finally:
            version.leave()

    async def examples(self, request: Request) -> Response:
        """Refuse what takes tf.train.Example, for which an export has no signature."""
        self._asked_for(request)
        raise bad_request("the export has no signature that takes Examples; send the features to :predict")

    async def status(self, request: Request) -> Response:
        """Show the state of the versions, or of one."""
        self._require_name(request)
        board = self._follower.board
        if "version" in request.path_params:
            number = self._number(request)
            if number not in board.states:
                raise ServingError(404, f"Could not find version {number} of model {self._name}")
            return _indented({"model_version_status": [_state(number, board.states[number])]})
        if not board.states:
            raise ServingError(404, f"Could not find any versions of model {self._name}")
        every = sorted(board.states.items(), reverse=True)
        return _indented({"model_version_status": [_state(number, state) for number, state in every]})

    async def metadata(self, request: Request) -> Response:
        """Show what the model takes and gives."""
        version = self._asked_for(request)
        spec = {"name": self._name, "signature_name": "", "version": str(version.number)}
        return _indented(
            {"model_spec": spec, "metadata": {"signature_def": {"signature_def": dict(version.definitions)}}}
        )

    async def served(self, request: Request) -> Response:
        """Show which version answers and why, and what is known of it."""
        self._require_name(request)
        board = self._follower.board
        version = board.served
        body: dict[str, Any] = {
            "served": None if version is None else version.number,
            "wanted": board.wanted,
            "newest": board.newest,
            "loaded": sorted(board.loaded),
            "problem": board.problem,
        }
        if self._memory is not None:
            body["memory"] = asdict(self._memory.board())
        if self._log is not None:
            body["log"] = asdict(self._log.board())
        if version is not None and version.about:
            body["export"] = {name: version.about[name] for name in _KNOWN if name in version.about}
        return _indented(body)

    def close(self) -> None:
        """End the threads that read large bodies; returns at once."""
        self._readers.shutdown(wait=False, cancel_futures=True)

    async def _run(self, work: Callable[[], T], *, large: bool) -> T:
        """Do what costs CPU: on the loop if it is little, else on a thread."""
        return await asyncio.get_running_loop().run_in_executor(self._readers, work) if large else work()

    def _asked_for(self, request: Request) -> LoadedVersion:
        """Return the loaded version that the path names."""
        self._require_name(request)
        board, given = self._follower.board, request.path_params
        if "version" in given:
            number = self._number(request)
            if number not in board.loaded:
                raise ServingError(404, f"Servable not found for request: Specific({self._name}, {number})")
            return board.loaded[number]
        if board.served is None:
            raise ServingError(503, f"no version of {self._name} is loaded: {board.problem or 'it is starting'}")
        return board.served

    def _require_name(self, request: Request) -> None:
        name = request.path_params["name"]
        if name != self._name:
            raise ServingError(404, f"Servable not found for request: Latest({name[:100]})")

    @staticmethod
    def _number(request: Request) -> int:
        text = request.path_params["version"]
        if not text.isdecimal() or len(text) > 18:
            raise bad_request(f"Malformed request: {request.method} {request.url.path[:200]}")
        return int(text)


def _known_to(version: LoadedVersion, memory: TopicMemory | None) -> dict[str, int]:
    """Return up to where the topics are known to what answers now."""
    if memory is not None:
        return {str(partition): offset for partition, offset in memory.keys.positions().items()}
    return {
        f"{topic}:{number}": offset
        for topic, offsets in version.about.get("positions", {}).items()
        for number, offset in offsets.items()
    }


def error_response(error: ServingError) -> Response:
    """Return an error as TF Serving has it."""
    # A name that the text quotes may hold half of a surrogate pair, which UTF-8 has no bytes for.
    body = json.dumps({"error": error.text, **error.facts}, ensure_ascii=False, separators=(",", ":"))
    return Response(body.encode(errors="backslashreplace"), error.status, error.headers, "application/json")


def _indented(body: Mapping[str, Any]) -> Response:
    return Response(json.dumps(body, indent=1) + "\n", media_type="application/json")


def _state(number: int, state: VersionState) -> dict[str, Any]:
    status = {"error_code": state.error_code, "error_message": state.error_message}
    return {"version": str(number), "state": state.state, "status": status}
