"""The options of `millrace pretrain`, by what they are about, as typed and as what they mean."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from uuid import uuid4

import typer

from millrace.app.tools.pretrain.topic_range import TopicRange
from millrace.consumers.kafka.positions import Offsets, parse_start, parse_until

if TYPE_CHECKING:
    from millrace.pipelines.files.service_dataset import ServiceJob

Files = Annotated[
    list[Path] | None,
    typer.Argument(metavar="[FILES]", help="TFRecord files of tf.train.Example; default: the archive's shards."),
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
            help="Where to learn live from, as in clicks:0=123; default: the end of what was read, or kafka.start.",
        ),
    ] = None

    def named(self) -> TopicRange | None:
        """Return the range, or None where none is named."""
        if self.start is not None:
            return TopicRange(start=parse_start(self.start), until=parse_until(self.until or "now"))
        if self.until is not None:
            raise typer.BadParameter(
                "it ends a range of the topics; say by --from where it begins", param_hint="--until"
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
        typer.Option(help="The share of the rows, the newest, to validate on; default: 10% where it can be."),
    ] = None
    patience: Annotated[
        int | None,
        typer.Option(min=1, help="Stop after so many epochs without a better validation; keep the best epoch."),
    ] = None
    tensorboard: Annotated[Path | None, typer.Option(metavar="DIR", help="Write TensorBoard's events there.")] = None
    callbacks: Annotated[
        str | None, typer.Option(metavar="FUNCTION", help="The function of model.py that returns Keras callbacks.")
    ] = None

    def validation_share(self) -> float | None:
        """Return 0.1 for 10% or 0.1; None where nothing is said."""
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
        typer.Option(metavar="memory|DIR", help="Keep what decoding and preprocess give, for the later epochs."),
    ] = None
    deterministic: Annotated[
        bool, typer.Option("--deterministic", help="The same order of rows on every run; slower.")
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

    def check(self, *, deterministic: bool, ranged: bool) -> None:
        """Raise BadParameter where one option needs another, or excludes it."""
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
                "workers read files that stay, where they find them too: archive the topics first", param_hint="--from"
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
        return ServiceJob(address=address, job=self.job_name, trainer=trainer)
