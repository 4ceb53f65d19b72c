"""Lines as operators and machines read them."""

import asyncio
import io
import json
import logging
import subprocess
import sys
import threading
import warnings
from typing import Any

import numpy as np
import pytest
from starlette.applications import Starlette
from starlette.types import Message

from millrace.app.api.audit import Audit
from millrace.app.service import logs
from millrace.consumers.records import Partition


@pytest.fixture
def stream() -> io.StringIO:
    return io.StringIO()


@pytest.fixture
def _unlimited_loggers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take the limits on lines per minute off: a server that another test has run here may have used them up."""
    for logger in logging.root.manager.loggerDict.values():
        if isinstance(logger, logging.Logger):
            monkeypatch.setattr(logger, "filters", [])


def as_json(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_an_order_is_written_down_however_little_is_said(stream: io.StringIO) -> None:
    async def nowhere(_message: Message) -> None:
        pass

    async def order() -> None:
        scope = {"type": "http", "method": "POST", "path": "/pause", "app": Starlette()}
        with Audit().recording(scope, nowhere, "ops over HTTP") as send:
            await send({"type": "http.response.start", "status": 200, "headers": []})

    logs.configure(form="json", level="error", stream=stream)
    asyncio.run(order())
    logging.getLogger("millrace.app.service.service").info("not said")
    (line,) = as_json(stream)
    assert (line["by"], line["status"]) == ("ops over HTTP", 200)


def test_a_json_line_holds_the_facts_and_the_extras(stream: io.StringIO) -> None:
    logs.configure(name="clicks", form="json", stream=stream)
    logging.getLogger("millrace.consumers.handoff").info(
        "took %d chunks", 3, extra={"partition": "clicks:0", "records": 7}
    )
    (line,) = as_json(stream)
    assert list(line) == ["ts", "level", "logger", "event", "name", "thread", "partition", "records"]
    assert line["ts"].endswith("Z")
    assert line | {"ts": ""} == {
        "ts": "",
        "level": "info",
        "logger": "consumers.handoff",
        "event": "took 3 chunks",
        "name": "clicks",
        "thread": threading.current_thread().name,
        "partition": "clicks:0",
        "records": 7,
    }


def test_a_text_line_reads_as_key_value(stream: io.StringIO) -> None:
    logs.configure(name="clicks", form="text", stream=stream)
    logging.getLogger("app.x").warning("slow", extra={"took": 1.5, "why": "a b", "state": "idle"})
    assert stream.getvalue()[24:] == ' warning app.x: slow took=1.5 why="a b" state=idle\n'


@pytest.mark.parametrize("form", ["text", "json"])
def test_a_line_break_in_a_value_makes_no_second_line(stream: io.StringIO, form: logs.LogFormat) -> None:
    logs.configure(form=form, stream=stream)
    logging.getLogger("app.x").error("first\nsecond", extra={"value": "third\nlevel=error"})
    assert len(stream.getvalue().splitlines()) == 1


def test_a_text_line_moves_no_cursor_and_sets_no_colour(stream: io.StringIO) -> None:
    logs.configure(form="text", stream=stream)
    logging.getLogger("app.x").error("an answer: \x1b[2J\x9b31m\u202e → é\r\n", extra={"value": "\x1b[31m"})
    assert stream.getvalue()[24:] == (r' error   app.x: an answer: \x1b[2J\x9b31m\u202e → é value="\u001b[31m"' + "\n")


def test_an_extra_cannot_pass_for_a_fact(stream: io.StringIO) -> None:
    logs.configure(form="json", stream=stream)
    logging.getLogger("app.x").info("said %s", "so", extra={"event": "other", "level": "error", "ts": "never"})
    (line,) = as_json(stream)
    assert (line["event"], line["level"]) == ("said so", "info")


def test_values_of_any_type_are_written(stream: io.StringIO) -> None:
    logs.configure(form="json", stream=stream)
    extra = {
        "numpy": np.float32(1.5),
        "nan": float("nan"),
        "partition": Partition("a", 1),
        "by": {Partition("a", 1): np.int64(5)},
        "some": {3},
        "odd": object,
    }
    logging.getLogger("app.x").info("all", extra=extra)
    (line,) = as_json(stream)
    assert (line["numpy"], line["nan"], line["partition"], line["some"]) == (1.5, "nan", "a:1", [3])
    assert line["by"] == {"a:1": 5}


def test_a_traceback_is_one_field_of_a_json_line(stream: io.StringIO) -> None:
    logs.configure(form="json", stream=stream)
    secret = "canary-in-a-local"
    try:
        int(secret[:0])
    except ValueError:
        logging.getLogger("app.x").exception("failed")
    (line,) = as_json(stream)
    assert "ValueError: invalid literal" in line["exception"]
    assert secret not in line["exception"].replace(f'secret = "{secret}"', "")


def test_configuring_twice_writes_each_line_once(stream: io.StringIO) -> None:
    logs.configure(form="json", stream=io.StringIO())
    logs.configure(form="json", stream=stream)
    logging.getLogger("app.x").info("once")
    assert len(as_json(stream)) == 1


def test_auto_is_json_where_nobody_watches(stream: io.StringIO) -> None:
    logs.configure(stream=stream)
    logging.getLogger("app.x").info("hello")
    assert as_json(stream)[0]["event"] == "hello"


@pytest.mark.usefixtures("_unlimited_loggers")
def test_the_level_holds_for_us_and_libraries_stay_quiet(stream: io.StringIO) -> None:
    logs.configure(form="json", level="debug", stream=stream)
    for name in ("consumers.x", "aiokafka.conn", "uvicorn.error", "absl", "tensorflow"):
        logging.getLogger(name).debug("debug")
        logging.getLogger(name).error("error")
    said = [(line["logger"], line["event"]) for line in as_json(stream)]
    assert said[:2] == [("consumers.x", "debug"), ("consumers.x", "error")]
    assert [event for _, event in said[2:]] == ["error"] * 4


def test_python_warnings_become_lines(stream: io.StringIO) -> None:
    logs.configure(form="json", stream=stream)
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        logging.captureWarnings(capture=False)
        logging.captureWarnings(capture=True)
        warnings.warn("old", stacklevel=1)
    assert as_json(stream)[0]["logger"] == "py.warnings"


@pytest.mark.tensorflow
@pytest.mark.parametrize("first", ["import tensorflow", "pass"])
def test_tensorflow_imported_before_or_after_changes_nothing(first: str) -> None:
    code = f"""
import logging
{first}
from millrace.app.service import logs
logs.configure(form="json")
import tensorflow as tf, absl.logging
logging.getLogger("app.x").info("ours")
tf.get_logger().warning("theirs")
tf.get_logger().info("hidden")
absl.logging.warning("absl's")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    lines = [json.loads(line) for line in done.stderr.splitlines() if line.startswith("{")]
    assert [line["event"] for line in lines] == ["ours", "theirs", "absl's"]
    assert not [line for line in done.stderr.splitlines() if "theirs" in line and not line.startswith("{")]
