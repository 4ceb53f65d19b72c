"""`millrace data-service`: runs the dispatcher or a worker of a tf.data service, for `millrace pretrain --service`."""

# ruff: noqa: PLC0415 - signals are handled before the slow imports

from pathlib import Path
from typing import Annotated

import typer

from millrace.app.service.logs import configure
from millrace.app.service.native_log import load_tensorflow
from millrace.app.service.process import Signals

data_service = typer.Typer(
    help="Run the dispatcher or a worker of a tf.data service, for `millrace pretrain --service`.",
    no_args_is_help=True,
)
_PORT = 5050


@data_service.command()
def dispatcher(
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port to listen on; 0: any free one.")] = _PORT,
    work_dir: Annotated[
        Path | None,
        typer.Option(help="A folder for its jobs, which it finds again when it is started again; default: none."),
    ] = None,
) -> None:
    """Deal shards to the workers of a tf.data service until Ctrl-C or SIGTERM.

    TensorFlow's server has no authentication and listens on all networks of this machine: a program that reaches the
    port can run code here, so have a firewall before it. Example:
    millrace data-service dispatcher --work-dir /var/tmp/jobs
    """
    signals = _begun("dispatcher")
    from millrace.app.tools.data_service import dispatch

    signals.begin()
    dispatch(port, work_dir, signals.asked)


@data_service.command()
def worker(
    dispatcher: Annotated[str, typer.Option(help="The dispatcher's address, host:port.")] = f"localhost:{_PORT}",
    port: Annotated[
        int,
        typer.Option(min=0, max=65535, help="The port to listen on, the same at each start; 0: any free one."),
    ] = 0,
    address: Annotated[
        str | None,
        typer.Option(
            metavar="HOST[:PORT]", help="The address at which trainers reach this worker; default: localhost."
        ),
    ] = None,
    cache: Annotated[
        str, typer.Option(metavar="SIZE", help="Memory for trainers that share rows by --cross-trainer-cache.")
    ] = "1GiB",
) -> None:
    """Read, decode and prepare what trainers ask for by `millrace pretrain --service`, until Ctrl-C or SIGTERM.

    The files must be at the same path as on the trainer's machine. It needs no config. As the dispatcher's, its port is
    open to all networks, without authentication. Example: millrace data-service worker --dispatcher localhost:5050
    """
    signals = _begun("worker")
    from millrace.app.tools.data_service import host_and_port, work
    from millrace.consumers.units import parse_size

    try:
        size = parse_size(cache)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--cache") from None
    at = host_and_port(dispatcher, "--dispatcher")
    signals.begin()
    work(at, port, address, size, signals.asked)


def _begun(name: str) -> Signals:
    signals = Signals()
    signals.install()
    configure(name=f"data-service {name}")
    load_tensorflow()
    return signals
