"""`millrace pretrain`: epochs over an archive, a range of the topics or files, before the model goes live."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from uuid import uuid4

import typer

from millrace.app.cli.config_file import ConfigFile
from millrace.app.cli.notes import note
from millrace.app.cli.options import Json, grouped, loaded, print_json
from millrace.app.cli.tables import BarLines
from millrace.app.service.logs import configure
from millrace.app.service.native_log import load_tensorflow
from millrace.app.settings import Loaded
from millrace.app.settings.environment import require_tensorflow_backend
from millrace.app.tools.pretrain.shard_sources import ShardSource, TopicRange, from_archive, from_files, from_images
from millrace.consumers.archive.shard_copies import ShardCopies
from millrace.consumers.errors import ConfigError
from millrace.consumers.kafka.positions import Offsets, parse_start, parse_until
from millrace.consumers.suggested_command import suggested_command

if TYPE_CHECKING:
    from millrace.app.tools.pretrain.pretrain import Result
    from millrace.pipelines.files.service_dataset import ServiceJob
    from millrace.training.model.golden.golden_records import GoldenRecords
    from millrace.training.pretraining.epochs import Epoch

Files = Annotated[
    list[Path] | None,
    typer.Argument(
        metavar="[FILES]",
        help="TFRecord files of tf.train.Example, or a folder of images in folders named as their labels; default: the "
        "archive's shards.",
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class RangeOptions:
    """Which range of the topics is read, and where live training begins."""

    start: Annotated[
        str | None,
        typer.Option(
            "--from", help="Read the topic from here instead: earliest, an age as in -7d, a time, or offsets."
        ),
    ] = None
    until: Annotated[
        str | None, typer.Option(help="With --from: up to here, and live from here; default: now.", metavar="TEXT")
    ] = None
    position: Annotated[
        str | None,
        typer.Option(
            metavar="OFFSETS",
            help="The offsets from which to learn live, as in clicks:0=123; default: the end of what was read, or "
            "kafka.start.",
        ),
    ] = None

    def named(self) -> TopicRange | None:
        """Return the range, or None if none is named."""
        if self.start is not None:
            return TopicRange(start=parse_start(self.start), until=parse_until(self.until or "now"))
        if self.until is not None:
            raise typer.BadParameter(
                "it ends a range of the topics; give its beginning by --from", param_hint="--until"
            )
        return None

    def live_from(self) -> Offsets | None:
        """Return the offsets at which live training is to begin; None leaves it to the source."""
        if self.position is None:
            return None
        found = parse_start(self.position)
        if not isinstance(found, Offsets):
            raise typer.BadParameter(
                f"{self.position!r} are no offsets; write clicks:0=123,clicks:1=77", param_hint="--position"
            )
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class LearningOptions:
    """How long the model learns, how it is judged, and who hears of it."""

    epochs: Annotated[int, typer.Option(min=1, help="How often all rows are learnt.")] = 1
    validation: Annotated[
        str | None,
        typer.Option(help="The share of the rows, the newest, to validate on; default: the golden set, or else 10%."),
    ] = None
    patience: Annotated[
        int | None,
        typer.Option(min=1, help="Stop after this many epochs without a better validation; keep the best epoch."),
    ] = None
    tensorboard: Annotated[Path | None, typer.Option(metavar="DIR", help="Write TensorBoard's events there.")] = None
    profile: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Say what is slowest in the first epoch, and write a trace for TensorBoard."),
    ] = None
    callbacks: Annotated[
        str | None, typer.Option(metavar="FUNCTION", help="The function of model.py that returns Keras callbacks.")
    ] = None

    def validation_share(self) -> float | None:
        """Return 0.1 for 10% or 0.1; None if nothing is said."""
        text = self.validation
        if text is None:
            return None
        try:
            share = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
        except ValueError:
            share = -1.0
        if not 0 <= share < 1:
            raise typer.BadParameter(f"{text!r} is no share; write 10%, or 0 for none", param_hint="--validation")
        return share


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadingOptions:
    """In which order rows are read, and what is kept of them."""

    shuffle: Annotated[int, typer.Option(min=0, help="Rows of the window that is permuted; 0: none.")] = 65_536
    cache: Annotated[
        str | None,
        typer.Option(
            metavar="memory|DIR",
            help="Keep what decoding and preprocess give, for the later epochs; in a folder for later runs too.",
        ),
    ] = None
    deterministic: Annotated[
        bool, typer.Option("--deterministic", help="The same order of rows on every run; slower.")
    ] = False
    cache_shards: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Fetch a bucket's shards to this folder, for later runs too."),
    ] = None
    skip_damaged: Annotated[
        bool,
        typer.Option("--skip-damaged", help="Read all files first, and leave out those that are not what was written."),
    ] = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SharingOptions:
    """Which tf.data service reads the rows, and which trainers share them."""

    service: Annotated[
        str | None,
        typer.Option(
            metavar="grpc://HOST:PORT", help="Have the workers of this tf.data service read, decode and preprocess."
        ),
    ] = None
    job_name: Annotated[
        str | None, typer.Option(metavar="NAME", help="With --service: share its rows with trainers of the same name.")
    ] = None
    cross_trainer_cache: Annotated[
        bool,
        typer.Option("--cross-trainer-cache", help="With --job-name: each trainer gets all rows, made once for all."),
    ] = False

    max_outstanding_requests: Annotated[
        int | None,
        typer.Option(
            min=1, help="With --service: chunks of rows that are asked of workers at a time; default: TensorFlow's."
        ),
    ] = None

    def check(self, *, deterministic: bool, ranged: bool) -> None:
        """Raise BadParameter where one option needs another, or excludes it."""
        if self.max_outstanding_requests is not None and self.service is None:
            raise typer.BadParameter(
                "it bounds the reading from a service; name it by --service", param_hint="--max-outstanding-requests"
            )
        if self.job_name is not None and self.service is None:
            raise typer.BadParameter("a job is one of a service; name it by --service", param_hint="--job-name")
        if self.job_name == "":
            raise typer.BadParameter("write a name", param_hint="--job-name")
        if self.cross_trainer_cache and self.job_name is None:
            raise typer.BadParameter(
                "trainers share the cache of a job; name it by --job-name", param_hint="--cross-trainer-cache"
            )
        if deterministic and self.service is not None:
            raise typer.BadParameter("workers give rows in no order; leave it out", param_hint="--deterministic")
        if ranged and self.service is not None:
            raise typer.BadParameter(
                "workers read files that stay, and that they reach too: archive the topics first", param_hint="--from"
            )

    def job(self, name: str) -> "ServiceJob | None":
        """Return the job of the service for a trainer of this name; None without a service."""
        if self.service is None:
            return None
        from millrace.app.tools.data_service import host_and_port, require_dispatcher  # noqa: PLC0415 - loads TensorFlow
        from millrace.pipelines.files.service_dataset import ServiceJob  # noqa: PLC0415 - loads TensorFlow

        address = host_and_port(self.service, "--service")
        require_dispatcher(address)
        # Trainers of one name would share rows rather than each get all of them.
        trainer = f"{name}-{uuid4().hex}" if self.cross_trainer_cache else None
        return ServiceJob(address=address, job=self.job_name, trainer=trainer, most_asked=self.max_outstanding_requests)


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
    if learning.profile is not None and sharing.service is not None:
        raise typer.BadParameter(
            "the workers of a service read in other processes; leave it out", param_hint="--profile"
        )
    source = source_of(found, files or [], extent, reading)
    configure(name=found.settings.name, form=found.settings.logs.format, level="warning")
    load_tensorflow()
    # These load TensorFlow.
    from millrace.app.tools.pretrain.inputs import InputOptions  # noqa: PLC0415
    from millrace.app.tools.pretrain.pretrain import PretrainOptions  # noqa: PLC0415
    from millrace.app.tools.pretrain.pretrain import pretrain as train  # noqa: PLC0415

    options = PretrainOptions(
        epochs=learning.epochs,
        validation=share,
        patience=learning.patience,
        inputs=InputOptions(shuffle=reading.shuffle, cache=reading.cache, deterministic=reading.deterministic),
        tensorboard=learning.tensorboard,
        profile=learning.profile,
        callbacks=learning.callbacks,
        service=sharing.job(found.settings.name),
        position=begin,
    )
    with EpochLines(learning.epochs, quiet=as_json) as lines:
        result = train(found, source, options, lines)
    if as_json:
        print_json(_facts(result))
        return
    begins = ", ".join(f"{partition} {offset}" for partition, offset in result.manifest.positions.items())
    typer.echo(f"checkpoint {result.manifest.number} is durable: epoch {result.pretrained.best}; live from {begins}")
    typer.echo(f"go on by `{suggested_command('run')}`")


def source_of(
    found: Loaded, files: list[Path], extent: RangeOptions, reading: ReadingOptions = ReadingOptions()
) -> ShardSource | TopicRange:
    """Return what the command line names: files, a range of the topics, or else the archive."""
    wanted, place = extent.named(), found.settings.archive.path
    if wanted is not None and files:
        raise typer.BadParameter("name files, or a range of the topics", param_hint="--from")
    if wanted is not None and reading.skip_damaged:
        raise typer.BadParameter("it goes with files and with the archive", param_hint="--skip-damaged")
    if reading.cache_shards is not None and (wanted is not None or files or not isinstance(place, str)):
        raise typer.BadParameter(
            "it is for the shards of an archive in a bucket, and these records are read from elsewhere",
            param_hint="--cache-shards",
        )
    if len(files) == 1 and files[0].is_dir():
        if reading.skip_damaged:
            raise typer.BadParameter(
                "an image that is damaged is set aside as bad_image, and the others are learnt; leave it out",
                param_hint="--skip-damaged",
            )
        return from_images(files[0])
    if wanted is not None or files:
        return wanted or from_files(files, skip_damaged=reading.skip_damaged)
    if place is None:
        raise ConfigError(
            "archive.path: the settings name no archive; write its folder there, or name TFRecord files, or give the "
            "beginning of a range of the topics by --from"
        )
    copies = None if reading.cache_shards is None else ShardCopies(reading.cache_shards, str(place))
    source = from_archive(place, found.settings.kafka.topics, skip_damaged=reading.skip_damaged, copies=copies)
    if copies is not None:
        note(copies.told(source.archived))
    return source


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


class EpochLines(BarLines):
    """Hears how the pretraining goes, and shows it."""

    def __init__(self, epochs: int, *, quiet: bool) -> None:
        super().__init__(quiet=quiet)
        self._epochs = epochs

    def dealt(
        self, training: ShardSource, validation: ShardSource | None, golden: "GoldenRecords | None" = None
    ) -> None:
        """Say what is trained and validated on."""
        validating = _validating(training, validation)
        if golden is not None and validation is None:
            validating = f"validating on the golden set: {golden.rows:,} rows of {golden.path}"
        self.say(f"training on {training.rows:,} rows of {training.what}, {validating}")
        for file in training.damaged:
            rows = "" if file.rows is None else f" with {file.rows:,} rows"
            self.say(f"{file.name}{rows} is left out: {file.why}")

    def began(self, epoch: int, rows: int) -> None:
        """Begin the bar of an epoch."""
        self.begin(f"epoch {epoch} of {self._epochs}", rows)

    def advanced(self, rows: int, loss: float) -> None:
        """Move the bar."""
        del loss
        self.advance(rows)

    def ended(self, epoch: "Epoch") -> None:
        """Print the lines of an epoch."""
        for line in lines_of(epoch, self._epochs):
            self.say(line)


def lines_of(epoch: "Epoch", epochs: int) -> Iterator[str]:
    """Give what an epoch has learnt, and what it has visited."""
    name = f"epoch {epoch.number} of {epochs}"
    rate = epoch.learnt / epoch.seconds if epoch.seconds else 0.0
    figures = ", ".join(f"{figure} {value:.4g}" for figure, value in epoch.figures.items())
    yield f"{name}: {figures}; {epoch.learnt:,} rows in {epoch.seconds:.1f} s ({rate:,.0f} rows/s)"
    aside = ", ".join(f"{count:,} {reason}" for reason, count in sorted(epoch.set_aside.items()))
    left_out = ", ".join(f"{count:,} by {setting}" for setting, count in sorted(epoch.left_out.items()))
    told = (f"; set aside {aside}" if aside else "") + (f"; left out {left_out}" if left_out else "")
    yield f"{name}: {epoch.visited}{told}"
    for shard, rows in list(epoch.visited.lacking.items())[:5]:
        yield f"{name}: {rows:,} rows of {shard} were not visited"


def _validating(training: ShardSource, validation: ShardSource | None) -> str:
    """Say how many rows are validated on, their share of all, and which they are."""
    if validation is None:
        return "validating on none"
    share = validation.rows / (training.rows + validation.rows)
    if validation.archived:
        given, every = (len({shard.partition for shard in part.archived}) for part in (validation, training))
        of = "" if every == 1 else f" of each of {every} partitions"
        which = "the newest" + (of if given == every else f" of {given} of {every} partitions")
    elif validation.images is not None:
        which = "chosen by their names"
    else:
        files = len(validation.shards)
        which = f"the newest {files} of {files + len(training.shards)} files"
    return f"validating on {validation.rows:,} ({share:.1%}): {which}".replace("%)", " %)")
