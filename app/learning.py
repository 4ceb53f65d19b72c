"""The user's model as a learner, by the settings: loaded, built, traced and proven. Imports TensorFlow."""

import logging

from app.settings import Settings, to_schema
from training.errors import ModelError
from training.learner import Learner, LearnerOptions
from training.model_file import LoadedModelFile, ModelFile, load
from training.proof import Finding, Proof
from training.strategy import DeviceOptions

log = logging.getLogger(__name__)


def model_file(settings: Settings) -> ModelFile:
    """Where the settings say that the model is."""
    build = settings.model.build
    return ModelFile(
        path=build.file, function=build.function, args=settings.model.args, preprocess=settings.model.preprocess
    )


def build_learner(settings: Settings) -> Learner:
    """Load and build the model, and trace its call."""
    learner = make_learner(load(model_file(settings)), settings)
    trace(learner, settings)
    return learner


def make_learner(functions: LoadedModelFile, settings: Settings) -> Learner:
    """Build the model on the devices; refuses one that the schema's rows do not fit."""
    training = settings.training
    options = LearnerOptions(
        schema=to_schema(settings.records),
        batch_size=training.batch_size,
        devices=DeviceOptions(
            replicas=None if training.replicas == "auto" else training.replicas,
            deterministic=training.deterministic,
        ),
        seed=training.seed,
    )
    return Learner(functions.build, functions.preprocess, options)


def trace(learner: Learner, settings: Settings) -> None:
    """Trace the call; refuses a model with state that no checkpoint would hold."""
    learner.trace(learner.rows_of(learner.probe()), deterministic=settings.training.deterministic)


def prove(learner: Learner, settings: Settings) -> list[Finding]:
    """Examine the model; refuse it, or warn, where a claim does not hold."""
    findings = Proof(learner).findings()
    for finding in findings:
        if finding.holds is None:
            log.warning("not shown: %s: %s", finding.claim, finding.detail)
        elif not finding.holds and settings.training.proof == "warn":
            log.warning("does not hold: %s: %s", finding.claim, finding.detail)
        elif not finding.holds:
            raise ModelError(f"model.build: it does not hold for this model that {finding.claim}: {finding.detail}")
    return findings
