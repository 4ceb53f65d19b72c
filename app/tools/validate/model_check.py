"""The checks of the model: the claims of `docs/model.md`, as far as a program can check them.

Loads, builds and traces the model as a start does, and runs it on real or made-up rows; what it learns from them is
undone.
"""

import ast
from collections.abc import Generator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from millrace.app.service.model_setup import (
    examine,
    golden_of,
    golden_records_of,
    load_model,
    make_learner,
    require_known_conditions,
    trace,
    watched_of,
)
from millrace.app.service.watchers import scored_by
from millrace.app.settings import Settings
from millrace.app.tools.validate.check import CheckResult, fail, ok, skip, warn
from millrace.consumers.errors import ConfigError, MillraceError
from millrace.pipelines.schema import Field
from millrace.training.errors import ModelError
from millrace.training.model.call.compiled_call import first_batch
from millrace.training.model.learner import Learner
from millrace.training.model.probes import Probe, ReadSample
from millrace.training.model.proof.proof import Finding
from millrace.training.model.setup.build_errors import without_mean
from millrace.training.model.setup.model_code import OURS

_MANY_STEPS = 10_000_000
_TOO_SLOW = 0.01
_MANY_PASSES = 4
"""More passes of the same batch than these take from a model, change by change, what it takes to learn the next one."""


def model_checks(
    settings: Settings, samples: tuple[ReadSample, ...] = ()
) -> Generator[CheckResult, None, Learner | None]:
    """Check the model, on real records where there is a sample of them; return the learner where there is one."""
    learner = yield from build_checks(settings, samples)
    if learner is None:
        yield from (skip(name, "the model does not build") for name in ("state", "proof"))
        return None
    yield _watched(learner, settings)
    yield from _balanced(learner)
    yield from _remembered(learner)
    # Warn about what a start accepts and a long stream will punish.
    yield from (warn("model", sentence) for sentence in without_mean(learner.model))
    rate = getattr(learner.model.optimizer, "_learning_rate", None)
    if isinstance(rate, keras.optimizers.schedules.LearningRateSchedule):
        first, late = float(rate(0)), float(rate(_MANY_STEPS))
        if late < _TOO_SLOW * first:
            yield warn(
                "model",
                f"the learning rate falls from {first:g} to {late:g} within {_MANY_STEPS:,} steps, which ends the "
                "learning; let it level off",
            )
    for field in learner.options.schema.features:
        if (raised := _far_value_raises(learner, field)) is not None:
            yield warn(
                "model",
                f"a record whose {field.source!r} is far out makes it raise {raised}; each such record is searched for "
                "and set aside, which takes time: hash the feature, or take the remainder, inside the model",
            )
    yield from _state_and_proof(learner, settings)
    return learner


def build_checks(
    settings: Settings, samples: tuple[ReadSample, ...] = ()
) -> Generator[CheckResult, None, Learner | None]:
    """Check that the model loads and builds; return the learner where there is one."""
    build = settings.model.build
    try:
        functions = load_model(settings)
    except MillraceError as error:
        yield fail("model file", error)
        yield skip("model", "the model file does not load")
        return None
    yield ok("model file", f"{build.text} imports")
    # Complain about what the file should not do, although it imports.
    if OURS in _imported(build.file):
        yield warn("model file", "it imports millrace, whose modules may change with any version; write it without")
    if _has_computed():
        yield warn(
            "model file",
            "importing it computes something, which fixes TensorFlow's devices before training.replicas can lay them "
            "out; move that into build_model",
        )
    try:
        learner = make_learner(functions, settings, samples)
    except MillraceError as error:
        yield fail("model", error)
        return None
    functions_of = {"preprocess": learner.preprocess, "augment": learner.options.augment}
    *others, last = ["inputs", *(name for name, function in functions_of.items() if function is not None)]
    fits = f"{', '.join(others)} and {last} fit" if others else f"{last} fit"
    yield ok("model", f"builds with {learner.parameters:,} parameters; {fits} records.features")
    return learner


def golden_check(settings: Settings, learner: Learner | None) -> CheckResult:
    """Check that the golden set can be read, and scored by the model if there is one."""
    try:
        records = golden_records_of(settings)
        assert records is not None, "the settings name one"
        if learner is not None:
            golden_of(learner, records)
    except MillraceError as error:
        return fail("golden set", error)
    found = f"{records.rows:,} records of {records.path}"
    if records.refused:
        return warn(
            "golden set", f"{found}; {records.refused:,} do not decode and are not scored, as {records.complaint}"
        )
    return ok("golden set", found)


def _imported(path: Path) -> set[str]:
    nodes = [*ast.walk(ast.parse(path.read_bytes()))]
    names = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    names += [node.module or "" for node in nodes if isinstance(node, ast.ImportFrom) and node.level == 0]
    return {name.partition(".")[0] for name in names}


def _has_computed() -> bool:
    """Return whether TensorFlow's runtime runs already, after which its devices cannot be laid out any more."""
    cpu = tf.config.list_physical_devices("CPU")[0]
    laid_out = tf.config.get_logical_device_configuration(cpu)
    try:
        tf.config.set_logical_device_configuration(cpu, laid_out or [tf.config.LogicalDeviceConfiguration()])
    except RuntimeError:
        return True
    return False


def _state_and_proof(learner: Learner, settings: Settings) -> Iterator[CheckResult]:
    try:
        trace(learner, settings)
    except MillraceError as error:
        yield fail("state", error)
        yield skip("proof", "the model's step is not traced")
        return
    yield ok("state", f"all of it can be captured; model and optimizer weigh {learner.state_bytes:,} bytes")
    try:
        findings = examine(learner, whole_batches=settings.training.partial_batches == "wait")
    except MillraceError as error:
        yield fail("proof", error)
        return
    yield from (_proven(finding, lenient=settings.training.proof == "warn") for finding in findings)


def _watched(learner: Learner, settings: Settings) -> CheckResult:
    try:
        watched = watched_of(learner, settings)
        require_known_conditions(learner, settings, scored_by(learner, settings))
    except MillraceError as error:
        return fail("metrics", error)
    return ok("metrics", f"judged by {watched.name}: {'higher' if watched.higher_is_better else 'lower'} is better")


def _balanced(learner: Learner) -> Iterator[CheckResult]:
    balance = learner.call.shaping.balance
    if balance is None:
        return
    classes = ", ".join(balance.options.classes)
    if balance.output is not None:
        yield ok("balance", f"classes {classes}; what is scored is corrected to the stream as it is")
        return
    yield warn(
        "balance",
        f"classes {classes}; the scores are of the model's own predictions, which are too high for rare classes: they "
        "are corrected if the classes are those of the one output, and its loss is a cross-entropy",
    )


def _remembered(learner: Learner) -> Iterator[CheckResult]:
    reservoir, recent = learner.call.shaping.reservoir, learner.call.shaping.recent
    if reservoir is not None:
        texts = ", and its texts" if reservoir.holds_texts else ""
        yield ok(
            "reservoir",
            f"{reservoir.size:,} rows take {reservoir.nbytes / 1e6:,.1f} MB{texts}; {reservoir.beside} of them are "
            f"learnt again beside each {learner.batch_size}",
        )
    passes = learner.options.passes
    if recent is not None:
        yield ok(
            "memory" if learner.options.members is None else "members",
            f"passes 2 to {passes} draw from the last {recent.size:,} rows, which take {recent.nbytes / 1e6:,.1f} MB "
            "beside their texts",
        )
    elif passes > _MANY_PASSES:
        yield warn(
            "passes",
            f"each batch is learnt {passes} times in succession, and on a stream that changes a model learns each "
            f"change worse so; set training.memory: 300, or at most {_MANY_PASSES} passes",
        )


def _proven(finding: Finding, *, lenient: bool) -> CheckResult:
    if finding.holds:
        return ok("proof", finding.claim)
    if finding.holds is None:
        return warn("proof", f"not shown that {finding.claim}: {finding.detail}")
    text = f"it does not hold that {finding.claim}: {finding.detail}"
    return warn("proof", text) if lenient else fail("proof", ModelError(text))


def _far_value_raises(learner: Learner, field: Field) -> str | None:
    """Return the error that extreme integers, or unusual text, raise in the model; None where it accepts them."""
    if field.numpy_dtype.kind not in "iuO":
        return None
    probe = learner.probe()
    for value in _far_values(field):
        column = np.full_like(probe.features[field.name], value)
        try:
            _infer(learner, replace(probe, features={**probe.features, field.name: column}))
        except ConfigError as error:
            # A preprocess that parses a text is meant to raise on what it cannot read.
            if field.dtype != "string":
                return type(error.__cause__ or error).__name__
        except Exception as error:  # noqa: BLE001 - the user's own code may raise anything
            return type(error).__name__
    return None


def _far_values(field: Field) -> list[Any]:
    """Return the most extreme values that a field's rules admit."""
    if field.one_of is not None:
        return [value.encode() if isinstance(value, str) else value for value in field.one_of]
    if field.dtype == "string":
        return [b"", b"\xff\xfe"]
    limits = np.iinfo(field.dtype)
    return [limits.max if field.max is None else field.max, limits.min if field.min is None else field.min]


def _infer(learner: Learner, probe: Probe) -> None:
    x, _, _ = first_batch(learner.model, learner.rows_of(probe))
    learner.model(x, training=False)
