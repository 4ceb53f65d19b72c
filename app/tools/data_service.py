"""The servers of a tf.data service: a dispatcher that deals shards, and workers that read and prepare them.

Thin: the servers are TensorFlow's. A worker registers our decoders besides (`pipelines.files.service_worker`), so it
reads whatever `pretrain` reads. TensorFlow's servers listen on all networks of the machine, and have no authentication:
whoever reaches a port can run graphs there, which can read and write files. That is said at each start.

Each holds its process until SIGTERM; nothing is saved then. A dispatcher with a folder finds its jobs again there.
"""

import logging
import socket
import threading
from pathlib import Path
from typing import Any

import tensorflow as tf
from tensorflow.core.protobuf import service_config_pb2

from millrace.app.settings.sections.records import RecordsSettings, to_decoder, to_schema
from millrace.app.version import version
from millrace.consumers.errors import ConfigError, UnreachableError
from millrace.pipelines.files.service_worker import ServiceWork, Work, register
from millrace.pipelines.formats.example.decoder import ExampleDecoder
from millrace.pipelines.formats.shared.protocol import Decoder
from millrace.training.model.setup.keras_internals import bound_port

log = logging.getLogger(__name__)
_PROTOCOL = "grpc"
_CONNECT_S, _LOOK_S = 5.0, 0.2
_FORGET_AFTER_MS = 60_000
"""How long a job that nobody reads is kept, so that a name may be used again soon."""


def dispatch(port: int, work_dir: Path | None, asked: threading.Event) -> None:
    """Serve as a dispatcher until asked to end."""
    _require_free(port)
    if work_dir is not None:
        try:
            work_dir.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"--work-dir: {work_dir} cannot be made: {error.strerror}") from error
    server = _started(
        lambda: tf.data.experimental.service.DispatchServer(
            tf.data.experimental.service.DispatcherConfig(
                port=port,
                protocol=_PROTOCOL,
                work_dir=None if work_dir is None else str(work_dir.resolve()),
                fault_tolerant_mode=work_dir is not None,
                job_gc_timeout_ms=_FORGET_AFTER_MS,
            )
        )
    )
    bound = int(server.target.rpartition(":")[2])
    log.warning("%s", _open_to_all(bound))
    log.info("the dispatcher of a tf.data service serves on grpc://localhost:%d", bound)
    _until(asked)


def work(dispatcher: str, port: int, address: str | None, cache: int, asked: threading.Event) -> None:
    """Serve as a worker of a dispatcher until asked to end."""
    _require_free(port)
    _wait_for(dispatcher, asked)
    if asked.is_set():
        return
    kept = register(ServiceWork(version(), _decoder_of))
    host, _, _ = (address or "localhost").partition(":")
    shown = address if address is not None and ":" in address else f"{host}:%port%"
    server = _started(
        lambda: tf.data.experimental.service.WorkerServer(
            service_config_pb2.WorkerConfig(
                dispatcher_address=dispatcher,
                worker_address=shown,
                port=port,
                protocol=_PROTOCOL,
                data_transfer_address=f"{host}:%dts_port%",
                cross_trainer_cache_size_bytes=cache,
            )
        )
    )
    bound = bound_port(server)
    log.warning("%s", _open_to_all(bound))
    log.info("a worker of the tf.data service at %s serves on %s", dispatcher, shown.replace("%port%", str(bound)))
    _until(asked)
    del kept


def require_dispatcher(address: str) -> None:
    """Raise UnreachableError where nothing answers at host:port; TensorFlow would try for an hour."""
    try:
        _connect(address)
    except OSError as error:
        raise UnreachableError(
            f"--service: nothing answers at {address} ({error.strerror or error}); start "
            "`millrace data-service dispatcher` there"
        ) from error


def host_and_port(text: str, option: str) -> str:
    """Return the host:port of an address, with or without grpc://; ConfigError where it is none."""
    address = text.removeprefix("grpc://")
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or "/" in address:
        raise ConfigError(f"{option}: {text!r} is no address; write grpc://host:port, as in grpc://localhost:5050")
    return address


def _decoder_of(given: Work) -> Decoder:
    records = RecordsSettings.model_validate_json(given.records)
    return ExampleDecoder(to_schema(records), given.integers) if given.form == "example" else to_decoder(records)


def _connect(address: str) -> None:
    host, _, port = address.rpartition(":")
    socket.create_connection((host.strip("[]"), int(port)), _CONNECT_S).close()


def _wait_for(dispatcher: str, asked: threading.Event) -> None:
    """Wait until the dispatcher answers: in a cluster both start at once."""
    told = False
    while not asked.is_set():
        try:
            return _connect(dispatcher)
        except OSError as error:
            if not told:
                log.warning("nothing answers at %s (%s); waiting for the dispatcher", dispatcher, error)
            told = True
        asked.wait(_LOOK_S * 5)
    return None


def _require_free(port: int) -> None:
    """Raise ConfigError where another process has the port; TensorFlow says this in native lines only."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError as error:
            raise ConfigError(f"--port: {port} cannot be taken: {error.strerror}; name another one") from error


def _started(start: Any) -> Any:
    try:
        return start()
    except tf.errors.OpError as error:
        raise ConfigError(f"the server did not start: {error.message.splitlines()[0]}") from error


def _open_to_all(port: int) -> str:
    return (
        f"a program that reaches port {port} of this machine, on any of its networks, can run code here; have a "
        "firewall or a NetworkPolicy before it"
    )


def _until(asked: threading.Event) -> None:
    while not asked.wait(_LOOK_S):
        pass
    log.info("ending")
