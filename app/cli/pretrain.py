"""`millrace pretrain`: epochs over an archive, a range of the topics or files, before the model goes live."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from millrace.app.cli.config_file import ConfigFile
from millrace.app.cli.option_groups import grouped
from millrace.app.cli.options import Json, loaded
from millrace.app.cli.pretrain_options import Files, LearningOptions, RangeOptions, ReadingOptions, SharingOptions
from millrace.app.service.logs import configure
from millrace.app.service.native_log import load_tensorflow
from millrace.app.settings import Loaded
from millrace.app.settings.environment import require_tensorflow_backend
from millrace.app.tools.pretrain.shard_sources import ShardSource, from_archive, from_files
from millrace.app.tools.pretrain.topic_range import TopicRange
from millrace.consumers.errors import ConfigError
from millrace.consumers.suggested_command import suggested_command

if TYPE_CHECKING:
    from millrace.app.tools.pretrain.pretrain import Result


@grouped
def pretrain(
    files: Files = None,
    file: ConfigFile = None,
    extent: RangeOptions = RangeOptions(),
    learning: LearningOptions = LearningOptions(),
    reading: ReadingOptions = ReadingOptions(),
    sharing: SharingOptions = SharingOptions(),
    as_json: Json = False,
) -> None:
    """Train the model on the archive, a range of the topics, or files, and publish it as checkpoint 0 of a live model.

    `millrace run` then goes on from there: after an archive or a range from the very offset at which it ends. Nothing
    is kept of a training that does not reach its end. Example: millrace pretrain -c clicks.yaml --epochs 3 --patience 1
    """
    require_tensorflow_backend()
    found = loaded(file)
    share, begin = learning.validation_share(), extent.live_from()
    sharing.check(deterministic=reading.deterministic, ranged=extent.start is not None)
    source = source_of(found, files or [], extent)
    configure(name=found.settings.name, form=found.settings.logs.format, level="warning")
    load_tensorflow()
    # These load TensorFlow.
    from millrace.app.cli.render.epochs import EpochLines  # noqa: PLC0415
    from millrace.app.tools.pretrain.inputs import InputOptions  # noqa: PLC0415
    from millrace.app.tools.pretrain.pretrain import PretrainOptions  # noqa: PLC0415
    from millrace.app.tools.pretrain.pretrain import pretrain as train  # noqa: PLC0415

    options = PretrainOptions(
        epochs=learning.epochs,
        validation=share,
        patience=learning.patience,
        inputs=InputOptions(shuffle=reading.shuffle, cache=reading.cache, deterministic=reading.deterministic),
        tensorboard=learning.tensorboard,
        callbacks=learning.callbacks,
        service=sharing.job(found.settings.name),
        position=begin,
    )
    with EpochLines(learning.epochs, quiet=as_json) as lines:
        result = train(found, source, options, lines)
    if as_json:
        typer.echo(json.dumps(_facts(result), indent=2))
        return
    begins = ", ".join(f"{partition} {offset}" for partition, offset in result.manifest.positions.items())
    typer.echo(f"checkpoint {result.manifest.number} is durable: epoch {result.pretrained.best}; live from {begins}")
    typer.echo(f"go on by `{suggested_command('run')}`")


def source_of(found: Loaded, files: list[Path], extent: RangeOptions) -> ShardSource | TopicRange:
    """Return what the command line names: files, a range of the topics, or else the archive."""
    wanted = extent.named()
    if wanted is not None and files:
        raise typer.BadParameter("name files, or a range of the topics", param_hint="--from")
    return wanted or (from_files(files) if files else _archive(found))


def _archive(found: Loaded) -> ShardSource:
    path = found.settings.archive.path
    if path is None:
        raise ConfigError(
            "archive.path: the settings name no archive; write its folder there, or name TFRecord files, or say by "
            "--from where a range of the topics begins"
        )
    return from_archive(path, found.settings.kafka.topics)


def _facts(result: "Result") -> dict[str, object]:
    epochs = [
        {
            "epoch": epoch.number,
            "figures": dict(epoch.figures),
            "learnt": epoch.learnt,
            "seconds": round(epoch.seconds, 3),
            "visited": {**asdict(epoch.visited)},
            "set_aside": {str(reason): count for reason, count in epoch.set_aside.items()},
            "left_out": dict(epoch.left_out),
        }
        for epoch in result.pretrained.epochs
    ]
    return {
        "checkpoint": result.manifest.number,
        "positions": dict(result.manifest.positions),
        "pretrained": result.manifest.provenance["pretrained"],
        "epochs": epochs,
    }
