"""Structured logs: every stage logs by `logging` with `extra={...}`, and one handler renders it for people or machines.

Owns the root logger's one handler, on stderr; runs in whichever thread logs. A line is written at once, so there is
nothing to fill up and nothing to drain at the end. Libraries are quietened at the handler rather than on their
loggers, so that one which is imported later, and sets up loggers of its own, changes nothing.
"""

import json
import logging
import math
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Literal, TextIO

import structlog
from structlog.typing import EventDict, WrappedLogger

from millrace.app.printable import printable

LogFormat = Literal["auto", "text", "json"]

_LIBRARIES: Mapping[str, int] = {
    "aiokafka": logging.WARNING,
    "kafka": logging.WARNING,
    "uvicorn": logging.WARNING,
    "asyncio": logging.WARNING,
    "tensorflow": logging.WARNING,
    "absl": logging.WARNING,
    "h5py": logging.WARNING,
    "urllib3": logging.WARNING,
}
"""The lowest level that is shown of each library's loggers."""
_BRING_HANDLERS = ("absl", "tensorflow", "uvicorn", "uvicorn.access", "uvicorn.error")
_FACTS = ("ts", "level", "logger", "event", "name", "thread")
_NOISE = {"color_message", "message", "asctime"}
"""Uvicorn's second wording, and what other formatters leave behind on a record."""
_WORDS = "_words"


def configure(
    *, name: str | None = None, form: LogFormat = "auto", level: str = "info", stream: TextIO | None = None
) -> None:
    """Send all logs to `stream` (stderr), as `form`. A second call replaces the first."""
    stream = sys.stderr if stream is None else stream
    as_text = stream.isatty() if form == "auto" else form == "text"
    handler = _OurHandler(stream)
    handler.setFormatter(_formatter(name, as_text=as_text))
    handler.addFilter(_quiet_libraries)
    root = logging.getLogger()
    for present in list(root.handlers):
        if isinstance(present, _OurHandler):
            root.removeHandler(present)
    root.addHandler(handler)
    root.setLevel(level.upper())
    _take_over()
    logging.captureWarnings(capture=True)


class _OurHandler(logging.StreamHandler[TextIO]):
    """A type of its own, so that handlers which others put on the root logger are left alone."""


def _take_over() -> None:
    """Send the lines of libraries that have handlers of their own through the root logger too."""
    for name in _BRING_HANDLERS:
        # Looked up rather than made by getLogger: a library that is not imported has no logger yet.
        if (logger := logging.root.manager.loggerDict.get(name)) and isinstance(logger, logging.Logger):
            # With a handler of its own and propagation each line would appear twice.
            logger.handlers.clear()
            logger.propagate = True


def _quiet_libraries(record: logging.LogRecord) -> bool:
    return record.levelno >= _LIBRARIES.get(record.name.partition(".")[0], logging.NOTSET)


def _formatter(name: str | None, *, as_text: bool) -> logging.Formatter:
    def facts(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
        # Put the facts that every line has first, in one order; an extra of the same name is dropped.
        record: logging.LogRecord = event["_record"]
        moment = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        facts = {
            "ts": moment.replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name.removeprefix("millrace."),
            "event": str(event.pop(_WORDS)).rstrip(),
            "name": name,
            "thread": record.threadName,
        }
        extra = {key: value for key, value in event.items() if key not in facts and key not in _NOISE}
        return {**{key: value for key, value in facts.items() if value is not None}, **extra}

    return structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=[_set_event_apart, structlog.stdlib.ExtraAdder(), facts],
        processors=[
            structlog.stdlib.ProcessorFormatter.remove_processors_meta,
            structlog.processors.format_exc_info,
            _as_text if as_text else _as_json,
        ],
    )


def _set_event_apart(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    """Keep the message under a key that an extra called `event` cannot replace."""
    event[_WORDS] = event.pop("event")
    return event


def _as_json(_logger: WrappedLogger, _method: str, event: EventDict) -> str:
    return json.dumps(_plain(event), ensure_ascii=False)


def _as_text(_logger: WrappedLogger, _method: str, event: EventDict) -> str:
    """Render `time level logger: message key=value`, without the thread and the config's name."""
    trace = event.pop("exception", None)
    pairs = "".join(f" {key}={_word(value)}" for key, value in event.items() if key not in _FACTS)
    # One event stays one line and moves no cursor, because a message may quote text that comes from outside.
    level, what = str(event["level"]), str(event["event"])
    line = f"{event['ts']} {level:<7} {event['logger']}: {printable(what)}{pairs}"
    return line if trace is None else f"{line}\n{trace}"


def _word(value: Any) -> str:
    """Return a value as one word, in quotes where it has spaces or the like."""
    if isinstance(value, str):
        return value if value and value.isprintable() and not set(value) & set(' "=') else json.dumps(value)
    plain = _plain(value)
    return _word(plain) if isinstance(plain, str) else json.dumps(plain, ensure_ascii=False, separators=(",", ":"))


def _plain(value: Any) -> Any:
    """Return a value in JSON's own types: numpy's numbers as numbers, what JSON cannot hold (NaN too) as text."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    # Exactly a tuple: a named one, such as a partition, has a text of its own.
    if isinstance(value, list | set | frozenset) or type(value) is tuple:
        return [_plain(item) for item in value]
    if hasattr(value, "item") and getattr(value, "ndim", None) == 0:
        return _plain(value.item())
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    return value if value is None or isinstance(value, str | bool | int) else str(value)
