"""`millrace pretrain`: epochs over an archive or files, before the model goes live."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from uuid import uuid4

import typer

from app.cli.config_file import ConfigFile
from app.cli.options import Json, loaded
from app.service.logs import configure
from app.service.native_log import load_tensorflow
from app.settings import Loaded
from app.settings.environment import require_tensorflow_backend
from app.tools.pretrain.shard_sources import ShardSource, from_archive, from_files
from app.tools.pretrain.topic_range import TopicRange
from consumers.errors import ConfigError
from consumers.kafka.positions import Offsets, parse_start, parse_until
from consumers.suggested_command import suggested_command

if TYPE_CHECKING:
    from app.tools.pretrain.pretrain import Result
    from pipelines.service_dataset import ServiceJob


def pretrain(
    files: Annotated[
        list[Path] | None,
        typer.Argument(metavar="[FILES]", help="TFRecord files of tf.train.Example; default: the archive's shards."),
    ] = None,
    file: ConfigFile = None,
    start: Annotated[
        str | None,
        typer.Option(
            "--from", help="Read the topic from here instead: earliest, an age as in -7d, a time, or offsets."
        ),
    ] = None,
    until: Annotated[
        str | None, typer.Option(help="With --from: up to here, and live from here; default: now.", metavar="TEXT")
    ] = None,
    epochs: Annotated[int, typer.Option(min=1, help="How often all rows are learnt.")] = 1,
    validation: Annotated[
        str | None,
        typer.Option(help="The share of the rows, in the newest shards, to validate on; default: 10% where it can be."),
    ] = None,
    patience: Annotated[
        int | None,
        typer.Option(min=1, help="Stop after so many epochs without a better validation; keep the best epoch."),
    ] = None,
    shuffle: Annotated[int, typer.Option(min=0, help="Rows of the window that is permuted; 0: none.")] = 65_536,
    cache: Annotated[
        str | None,
        typer.Option(metavar="memory|DIR", help="Keep what decoding and preprocess give, for the later epochs."),
    ] = None,
    deterministic: Annotated[
        bool, typer.Option("--deterministic", help="The same order of rows on every run; slower.")
    ] = False,
    tensorboard: Annotated[Path | None, typer.Option(metavar="DIR", help="Write TensorBoard's events there.")] = None,
    callbacks: Annotated[
        str | None, typer.Option(metavar="FUNCTION", help="The function of model.py that returns Keras callbacks.")
    ] = None,
    position: Annotated[
        str | None,
        typer.Option(
            metavar="OFFSETS",
            help="Where to learn live from, as in clicks:0=123; default: the end of what was read, or kafka.start.",
        ),
    ] = None,
    service: Annotated[
        str | None,
        typer.Option(
            metavar="grpc://HOST:PORT", help="Have the workers of this tf.data service read, decode and preprocess."
        ),
    ] = None,
    job_name: Annotated[
        str | None, typer.Option(metavar="NAME", help="With --service: share its rows with trainers of the same name.")
    ] = None,
    cross_trainer_cache: Annotated[
        bool,
        typer.Option("--cross-trainer-cache", help="With --job-name: each trainer gets all rows, made once for all."),
    ] = False,
    as_json: Json = False,
) -> None:
    """Train the model on the archive, a range of the topics, or files, and publish it as checkpoint 0 of a live model.

    `millrace run` then goes on from there: after an archive or a range from the very offset at which it ends. Nothing
    is kept of a training that does not reach its end. Example: millrace pretrain -c clicks.yaml --epochs 3 --patience 1
    """
    require_tensorflow_backend()
    found = loaded(file)
    share = None if validation is None else _share(validation)
    begin = None if position is None else _offsets(position)
    _check_sharing(service, job_name, deterministic=deterministic, cached=cross_trainer_cache)
    source = source_of(found, files or [], start, until)
    configure(name=found.settings.name, form=found.settings.logs.format, level="warning")
    load_tensorflow()
    # These load TensorFlow.
    from app.cli.render.epochs import EpochLines  # noqa: PLC0415
    from app.tools.pretrain.inputs import InputOptions  # noqa: PLC0415
    from app.tools.pretrain.pretrain import PretrainOptions  # noqa: PLC0415
    from app.tools.pretrain.pretrain import pretrain as train  # noqa: PLC0415

    options = PretrainOptions(
        service=None if service is None else _service(service, job_name, found.settings.name, cross_trainer_cache),
        epochs=epochs,
        validation=share,
        patience=patience,
        inputs=InputOptions(shuffle=shuffle, cache=cache, deterministic=deterministic),
        tensorboard=tensorboard,
        callbacks=callbacks,
        position=begin,
    )
    with EpochLines(epochs, quiet=as_json) as lines:
        result = train(found, source, options, lines)
    if as_json:
        typer.echo(json.dumps(_facts(result), indent=2))
        return
    begins = ", ".join(f"{partition} {offset}" for partition, offset in result.manifest.positions.items())
    typer.echo(f"checkpoint {result.manifest.number} is durable: epoch {result.pretrained.best}; live from {begins}")
    typer.echo(f"go on by `{suggested_command('run')}`")


def source_of(found: Loaded, files: list[Path], start: str | None, until: str | None) -> ShardSource | TopicRange:
    """Return what the command line names: files, a range of the topics, or else the archive."""
    if start is not None:
        if files:
            raise typer.BadParameter("name files, or a range of the topics", param_hint="--from")
        return TopicRange(start=parse_start(start), until=parse_until(until or "now"))
    if until is not None:
        raise typer.BadParameter("it ends a range of the topics; say by --from where it begins", param_hint="--until")
    return from_files(files) if files else _archive(found)


def _check_sharing(service: str | None, job_name: str | None, *, deterministic: bool, cached: bool) -> None:
    if job_name is not None and service is None:
        raise typer.BadParameter("a job is one of a service; name it by --service", param_hint="--job-name")
    if job_name == "":
        raise typer.BadParameter("write a name", param_hint="--job-name")
    if cached and job_name is None:
        raise typer.BadParameter(
            "trainers share the cache of a job; name it by --job-name", param_hint="--cross-trainer-cache"
        )
    if deterministic and service is not None:
        raise typer.BadParameter("workers give rows in no order; leave it out", param_hint="--deterministic")


def _service(text: str, job_name: str | None, name: str, cached: bool) -> "ServiceJob":
    from app.tools.data_service import host_and_port, require_dispatcher  # noqa: PLC0415 - loads TensorFlow
    from pipelines.service_dataset import ServiceJob  # noqa: PLC0415 - loads TensorFlow

    address = host_and_port(text, "--service")
    require_dispatcher(address)
    # Trainers of one name would share rows rather than each get all of them.
    return ServiceJob(address=address, job=job_name, trainer=f"{name}-{uuid4().hex}" if cached else None)


def _archive(found: Loaded) -> ShardSource:
    path = found.settings.archive.path
    if path is None:
        raise ConfigError(
            "archive.path: the settings name no archive; write its folder there, or name TFRecord files, or say by "
            "--from where a range of the topics begins"
        )
    return from_archive(path, found.settings.kafka.topics)


def _share(text: str) -> float:
    """Parse 10% or 0.1."""
    try:
        share = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        share = -1.0
    if not 0 <= share < 1:
        raise typer.BadParameter(f"{text!r} is no share; write 10%, or 0 for none", param_hint="--validation")
    return share


def _offsets(text: str) -> Offsets:
    found = parse_start(text)
    if not isinstance(found, Offsets):
        raise typer.BadParameter(f"{text!r} are no offsets; write clicks:0=123,clicks:1=77", param_hint="--position")
    return found


def _facts(result: "Result") -> dict[str, object]:
    epochs = [
        {
            "epoch": epoch.number,
            "figures": dict(epoch.figures),
            "learnt": epoch.learnt,
            "seconds": round(epoch.seconds, 3),
            "visited": {**asdict(epoch.visited)},
            "set_aside": {str(reason): count for reason, count in epoch.set_aside.items()},
        }
        for epoch in result.pretrained.epochs
    ]
    return {
        "checkpoint": result.manifest.number,
        "positions": dict(result.manifest.positions),
        "pretrained": result.manifest.provenance["pretrained"],
        "epochs": epochs,
    }
