"""The figures of what works beside the trainer: the exports, and the page's history on disk. Pure; runs anywhere."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

from millrace.consumers.metric import Moment, NoMetric, PartFigures, counter, elapsed, gauge


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportFigures(PartFigures):
    """The exports that the trainer has made beside its work, in this process."""

    name: ClassVar = "exports"
    within: ClassVar = ""

    made: Annotated[int, counter("exports", "Bad: it stands still for many times export.every.")]
    """Versions published beside the training."""
    refused: Annotated[int, counter("exports_refused", "Bad: it grows; the events say why.")]
    """Exports that published nothing."""
    newest: Annotated[int | None, gauge("export_number", "Bad: far behind millrace_checkpoint_number.")] = None
    """The version that was published last."""
    newest_at: Annotated[
        Moment | None,
        elapsed(
            "export_age_seconds",
            "The time since a version was published. Bad: many times export.every; an old model is served.",
        ),
    ] = None
    running: Annotated[int | None, NoMetric("names a checkpoint")] = None
    """The checkpoint that is being exported."""
    running_since: Moment | None = None
    """Left out while none is."""
    missing: tuple[str, ...] | None = None
    """What `export.only_if` holds exports back for; left out where it does not."""
    missing_since: Annotated[
        Moment | None,
        elapsed(
            "export_held_back_seconds",
            "How long export.only_if has held exports back; 0 if it does not. Bad: it grows; /status says what is "
            "missing.",
            unless=0.0,
        ),
    ] = None
    error: str | None = None
    """Why nothing was published the last time; left out where something was."""
    unannounced: Annotated[int | None, gauge("exports_unannounced", "Bad: above 0 for minutes; /status says why.")] = (
        None
    )
    """Versions that are not on export.announce yet."""
    announce_error: str | None = None
    """Why they wait; left out where nothing fails."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptFigures(PartFigures):
    """What became of the files that keep the page's history."""

    name: ClassVar = "kept_history"
    section: ClassVar = "Process"

    ignored: Annotated[int, counter("history_files_ignored", "Bad: more than 0; the log says why.")] = 0
    """Files in which an earlier process kept the page's curves and events, and that cannot be used."""
    failed: Annotated[int, counter("history_writes_failed", "Bad: it grows; after a restart the page shows less.")] = 0
    """Writes of the page's curves and events that failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuFigures(PartFigures):
    """Each GPU that NVIDIA's driver shows to the process, by its number there; left out where there is none."""

    name: ClassVar = "gpus"
    within: ClassVar = "training"
    per: ClassVar = "gpu"

    utilization: Annotated[float | None, gauge("gpu_utilization_ratio", "Bad: below 0.8 while records wait.")]
    """The share of the last minute in which the GPU computed, for any process; left out where it does not say."""
    memory_bytes: Annotated[int, gauge("gpu_memory_bytes", "Bad: close to millrace_gpu_memory_total_bytes.")]
    """The GPU's memory that is taken, by any process."""
    memory_total_bytes: Annotated[int, gauge("gpu_memory_total_bytes", "")]
    """The GPU's memory."""
