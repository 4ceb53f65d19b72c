"""The user's model as a learner, by the settings: loaded, built, traced and proven. Imports TensorFlow."""

import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

from millrace.app.settings import Settings, to_decoder
from millrace.consumers.errors import ConfigError, MillraceError
from millrace.training.checkpoints.exports.export_gate import RECORDS, STALENESS, unknown_names
from millrace.training.checkpoints.manifest import GOLDEN
from millrace.training.errors import ModelError, gist
from millrace.training.model.call.metrics import preferred
from millrace.training.model.golden.golden_records import GoldenRecords, read_golden
from millrace.training.model.golden.golden_set import GoldenSet, scored_names
from millrace.training.model.learner import Learner, LearnerOptions
from millrace.training.model.probes import ReadSample
from millrace.training.model.proof.function_proofs import draws_by_seed, repeats_itself, row_by_row, states_add_up
from millrace.training.model.proof.proof import Finding, ModelProof
from millrace.training.model.setup.build_errors import without_effect, without_mean
from millrace.training.model.setup.mixture import MixedModel
from millrace.training.model.setup.model_file import LoadedModelFile, ModelFile, load
from millrace.training.model.setup.strategy import DeviceOptions
from millrace.training.telemetry.live_metrics import LiveMetrics, Watched, choose_watched
from millrace.training.trainer.metric_guesses import plan_of

log = logging.getLogger(__name__)


def model_file(settings: Settings) -> ModelFile:
    """Return where the settings say that the model is."""
    build = settings.model.build
    return ModelFile(
        path=build.file,
        function=build.function,
        args=settings.model.args,
        preprocess=settings.model.preprocess,
        augment=settings.model.augment,
    )


def load_model(settings: Settings) -> LoadedModelFile:
    """Load the model file; with `training.members` it builds their mixture."""
    functions, members = load(model_file(settings)), settings.training.members
    if members is None:
        return functions
    return replace(functions, build=partial(MixedModel.of, functions.build, **members.model_dump()))


def build_learner(
    settings: Settings, samples: tuple[ReadSample, ...] = (), group: Any = None, *, replay: bool = True
) -> Learner:
    """Load and build the model, and trace its call, on real records where there is a sample of them.

    `group` is the strategy of a group of workers, where this process is one of it. Without `replay` a reservoir is only
    filled, and no row is learnt again.
    """
    learner = make_learner(load_model(settings), settings, samples, group, replay=replay)
    for sentence in (*without_effect(learner.model), *without_mean(learner.model)):
        log.warning("model.build: %s", sentence)
    trace(learner, settings)
    return learner


def device_options(settings: Settings) -> DeviceOptions:
    """Return on which devices the settings have the model learn."""
    training = settings.training
    return DeviceOptions(
        replicas=None if training.replicas == "auto" else training.replicas,
        deterministic=training.deterministic,
        threads=None if training.threads == "auto" else training.threads,
    )


def make_learner(
    functions: LoadedModelFile,
    settings: Settings,
    samples: tuple[ReadSample, ...] = (),
    group: Any = None,
    *,
    replay: bool = True,
) -> Learner:
    """Build the model on the devices; raise ModelError where the schema's rows do not fit it."""
    training = settings.training
    options = LearnerOptions(
        schema=settings.row_schema,
        batch_size=training.numbers.batch_size
        if group is None
        else training.numbers.batch_size // settings.scale.workers,
        devices=replace(device_options(settings), group=group),
        seed=training.seed,
        samples=samples,
        passes=training.numbers.passes,
        memory=training.numbers.memory,
        members=None if training.members is None else training.members.since_drift,
        rows_together=training.rows == "together",
        augment=functions.augment,
        balance=settings.balance.for_rows(settings.row_schema),
        reservoir=settings.reservoir,
        beside=None if replay else 0,
    )
    with _model_at_fault("it does not run on the schema's rows"):
        return Learner(functions.build, functions.preprocess, options)


def trace(learner: Learner, settings: Settings) -> None:
    """Trace the call; raise ModelError where the model has state that no checkpoint would hold."""
    with _model_at_fault("its train_step cannot be traced"):
        learner.trace(learner.rows_of(learner.probe()), deterministic=settings.training.deterministic)


def watched_of(learner: Learner, settings: Settings) -> Watched:
    """Return the metric by which the model is judged; raise ConfigError where the settings do not name one of it."""
    metrics, live = learner.call.metrics, settings.training.live_metrics
    return choose_watched(metrics.directions, live.watch, live.better, first=preferred(metrics.metrics))


def require_known_conditions(learner: Learner, settings: Settings, watched: Sequence[str]) -> None:
    """Raise ConfigError where `export.only_if` names what is no metric of this model, and nothing that is watched."""
    metrics = ["loss", *learner.call.metrics.metrics]
    if settings.golden.used:
        metrics += [f"{GOLDEN}.{name}" for name in scored_names(learner)]
    metrics += watched
    if unknown := unknown_names(settings.export.only_if, metrics):
        raise ConfigError(
            f"export.only_if: {unknown[0]!r} is no metric of this model; there are {', '.join(metrics)}, {RECORDS} and "
            f"{STALENESS}"
        )


def live_metrics_of(learner: Learner, settings: Settings) -> LiveMetrics:
    """Return empty live metrics for this model."""
    plan = plan_of(learner.model, learner.call.metrics)
    if settings.scale.workers > 1:
        # Members hold partitions in turn, and report sums alone: nobody knows the last label of each.
        plan = replace(plan, repeats=())
    return LiveMetrics(
        window_s=settings.training.live_metrics.window,
        scored="inference_pass" if learner.call.options.inference_pass else "before_update",
        results=learner.call.metrics.results,
        plan=plan,
        clock=time.monotonic,
        names=tuple(learner.call.metrics.metrics),
        watch=watched_of(learner, settings),
    )


def golden_records_of(settings: Settings) -> GoldenRecords | None:
    """Read the golden set; None if the settings name none. Raises ConfigError."""
    path = settings.golden.path
    return None if path is None else read_golden(path, settings.row_schema, partial(to_decoder, settings.records))


def golden_of(learner: Learner, records: GoldenRecords | None) -> GoldenSet | None:
    """Return the golden set as this model takes it; None if there is none. Raises ModelError."""
    if records is None:
        return None
    if records.refused:
        log.warning(
            "golden.path: %s: %d records do not decode, as %s", records.path, records.refused, records.complaint
        )
    return GoldenSet(learner, records)


def examine(learner: Learner, *, whole_batches: bool = False) -> list[Finding]:
    """Return every claim that a start proves on the model, and whether it holds; some need no proof on whole batches.

    A batch is whole where `training.partial_batches` is `wait`.
    """
    with _model_at_fault("it fails on the rows of the proof"):
        if not repeats_itself(learner):
            detail = "preprocess gives something else each time, as random numbers do"
            return [Finding(claim="a record weighs the same everywhere", holds=None, detail=detail)]
        findings = ModelProof(learner, whole_batches=whole_batches).findings()
        doubtful = any(finding.holds is False and finding.rounding for finding in findings)
        if doubtful and learner.probes.sample is not None:
            findings = _looked_at_twice(learner, findings)
        return [*row_by_row(learner), *draws_by_seed(learner), *findings, *states_add_up(learner)]


def _looked_at_twice(learner: Learner, findings: Sequence[Finding]) -> list[Finding]:
    """Examine the model on made-up rows too, and doubt what rounding may have made fail on real records alone.

    Features of millions that no layer scales make sums in float32 that differ by rounding. A model that ignores weights
    fails on tame rows as well, and one that mixes rows, if only on some values, fails by more than rounding.
    """
    try:
        with learner.probes.without_records():
            tame = {finding.claim for finding in ModelProof(learner).findings() if finding.holds}
    except Exception:  # noqa: BLE001 - made-up rows may not be what the user's code can read
        return [*findings]
    detail = (
        "on sampled records rounding hides it, and it holds on made-up rows: scale the features (and labels) inside "
        "the model"
    )
    return [
        replace(finding, holds=None, detail=detail)
        if finding.holds is False and finding.rounding and finding.claim in tame
        else finding
        for finding in findings
    ]


def prove(learner: Learner, settings: Settings) -> list[Finding]:
    """Examine the model; where a claim does not hold, raise ModelError or only warn, as training.proof says."""
    findings = examine(learner, whole_batches=settings.training.partial_batches == "wait")
    for finding in findings:
        if finding.holds is None:
            log.warning("not shown: %s: %s", finding.claim, finding.detail)
        elif not finding.holds and settings.training.proof == "warn":
            log.warning("does not hold: %s: %s", finding.claim, finding.detail)
        elif not finding.holds:
            raise ModelError(f"model.build: it does not hold for this model that {finding.claim}: {finding.detail}")
    return findings


@contextmanager
def _model_at_fault(what: str) -> Iterator[None]:
    """Turn what the user's own code raises into a ModelError of one line; the traceback is logged at level debug."""
    try:
        yield
    except MillraceError:
        raise
    except (Exception, SystemExit) as error:
        log.debug("model.build: %s", what, exc_info=True)
        raise ModelError(f"model.build: {what}: {gist(error)}") from error
