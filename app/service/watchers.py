"""What watches the calls of a trainer, as the settings ask for it."""

import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace

from millrace.app.service.label_join import follow_arrivals
from millrace.app.service.model_setup import live_metrics_of
from millrace.app.settings.connection import kafka_options
from millrace.app.settings.root import Settings
from millrace.app.settings.sections.records import slice_fields, sources_read, to_schema
from millrace.consumers.errors import ConfigError
from millrace.consumers.kafka.source import KafkaSource
from millrace.pipelines.gates.input_gate import InputGate
from millrace.pipelines.gates.served_gate import ServedGate
from millrace.pipelines.gates.slice_gate import SliceGate
from millrace.pipelines.stream.served_reader import ServedReader
from millrace.training.detectors.detectors import Detectors
from millrace.training.model.learner import Learner
from millrace.training.telemetry.calibration.calibration import Calibration
from millrace.training.telemetry.events import ReportEvent, ignore_event
from millrace.training.telemetry.label_sums import Labels
from millrace.training.telemetry.watcher import Watcher
from millrace.training.trainer.arrivals.arrival_score import ArrivalScore
from millrace.training.trainer.inputs.input_watch import Inputs
from millrace.training.trainer.metric_guesses import plan_of
from millrace.training.trainer.served.served_scores import ServedScores
from millrace.training.trainer.slices.slice_scores import SliceScores


def watchers_of(
    learner: Learner, settings: Settings, opened: ExitStack, report: ReportEvent, pause: Callable[[str], object]
) -> tuple[Watcher, ...]:
    """Return all watchers; those that read from Kafka are closed with `opened`. Raises ModelError."""
    calibration = calibration_of(learner, settings)
    return (
        *detectors_of(learner, settings, report, pause),
        *_arrivals_of(learner, settings, opened, calibration),
        calibration,
        inputs_of(settings, report),
        *_slices_of(learner, settings),
        *_served_of(learner, settings, opened),
    )


def group_watchers_of(learner: Learner, settings: Settings, report: ReportEvent) -> tuple[Watcher, ...]:
    """Return the watchers of a member of a group, all of whose calls come together at the chief."""
    return (calibration_of(learner, settings), inputs_of(settings, report), *_slices_of(learner, settings))


def scored_by(learner: Learner, settings: Settings) -> list[str]:
    """Return what the watchers give to the conditions of exports. Raises ConfigError."""
    return [name for one in (inputs_of(settings), *_slices_of(learner, settings)) for name in one.score_names]


def detectors_of(
    learner: Learner,
    settings: Settings,
    report: ReportEvent = ignore_event,
    pause: Callable[[str], object] | None = None,
) -> tuple[Watcher, ...]:
    """Return what marks changes of this model's scores; nothing if the settings name none. Raises ModelError.

    `pause` is called with the reason where `training.pause_on_mark` asks for it.
    """
    training = settings.training
    if not (places := training.detector_places):
        return ()
    results = learner.call.metrics.results_or_nan
    return (Detectors(places, results, report, pause if training.pause_on_mark else None),)


def calibration_of(learner: Learner, settings: Settings) -> Calibration:
    """Return what counts whether the answers are true."""
    plan = plan_of(learner.model, learner.call.metrics)
    return Calibration(plan, settings.training.live_metrics.window, time.monotonic)


def inputs_of(settings: Settings, report: ReportEvent = ignore_event) -> Inputs:
    """Return what watches whether the fields of the records are as they were."""
    records = settings.records
    schema = replace(to_schema(records), slices=slice_fields(records))
    in_group = settings.scale.workers > 1
    return Inputs(InputGate(schema), [*records.slices], report, sources_read(records), in_group=in_group)


def _slices_of(learner: Learner, settings: Settings) -> tuple[Watcher, ...]:
    """Return what shows the live score by slices, if the settings name any; ConfigError if it has none to show."""
    if not settings.records.slices:
        return ()
    plan, window = plan_of(learner.model, learner.call.metrics), settings.training.live_metrics.window
    if plan.labels is Labels.NONE:
        raise ConfigError(
            "records.slices: neither the model's loss nor its metrics say what its label is, as with several outputs, "
            "so there is no score to show by slices; leave it out, or compile one of Keras' losses or metrics"
        )
    in_group = settings.scale.workers > 1
    return (SliceScores(SliceGate([*settings.records.slices]), plan, window, time.monotonic, in_group=in_group),)


def _served_of(learner: Learner, settings: Settings, opened: ExitStack) -> tuple[Watcher, ...]:
    """Return what scores the predictions of servers, if they log any and the model's labels can be told."""
    logged, plan = settings.serve.log, plan_of(learner.model, learner.call.metrics)
    schema = to_schema(settings.records)
    # With a label ahead a row is made of another record than the one that it is known by.
    if logged.topic is None or plan.labels is Labels.NONE or any(label.ahead for label in schema.labels):
        return ()
    options = replace(
        kafka_options(settings.kafka), topics=(logged.topic,), out_of_range="earliest", on_recreated="earliest"
    )
    reader = ServedReader(lambda: KafkaSource(options), settings.name)
    opened.callback(reader.stop)
    window = settings.training.live_metrics.window
    return (ServedScores(ServedGate(schema, logged.share), reader, plan, window, (time.monotonic, time.time)),)


def _arrivals_of(
    learner: Learner, settings: Settings, opened: ExitStack, calibration: Calibration
) -> tuple[Watcher, ...]:
    reader = follow_arrivals(settings, opened)
    return (
        ()
        if reader is None
        else (ArrivalScore(learner, live_metrics_of(learner, settings), reader, calibration.window),)
    )
