"""The checks of the user's classes that settings name: each keeps what every one of its kind keeps."""

from collections.abc import Iterator, Mapping
from functools import partial

import numpy as np

from millrace.app.tools.export.child_process import answers_of, run_module
from millrace.app.tools.validate.check import CheckResult, fail, ok, skip
from millrace.consumers.errors import MillraceError
from millrace.training.detectors import conformance as of_detectors
from millrace.training.detectors import detectors
from millrace.training.errors import ModelError
from millrace.training.model.export import conformance as of_writers
from millrace.training.model.export.export_writer import WritableModel
from millrace.training.model.export.served_module import ServedModel, ServedModule, require_servable
from millrace.training.model.export.writers import SETTING, WRITERS, writer_of
from millrace.training.model.learner import Learner
from millrace.training.model.setup.model_file import user_modules

ROWS = 64
"""The most rows on which a writer of the user's is checked."""


def writer_checks(writers: Mapping[str, str], learner: Learner | None) -> Iterator[CheckResult]:
    """Have each writer of the user's write this model, and check what every writer keeps."""
    for name, place in writers.items():
        if name in WRITERS:
            continue
        if learner is None:
            yield skip("export", f"there is no model for {name} to write")
            continue
        served = ServedModel(model=learner.model, schema=learner.options.schema, preprocess=learner.preprocess)
        probe = learner.probe().arranged(np.arange(min(learner.options.batch_size, ROWS)))
        try:
            require_servable(served.schema)
            writer = writer_of(place)
            model = WritableModel(module=ServedModule(served), user_code=user_modules(), run=run_module)
            found = [*of_writers.complaints(writer, model, probe, partial(answers_of, place, writer))]
        except MillraceError as error:
            yield fail("export", ModelError(f"{SETTING}: {name}: {error}"))
            continue
        yield from (fail("export", ModelError(f"{SETTING}: {name}: {text}")) for text in found)
        if not found:
            yield ok("export", f"{name} answers as the model does, and refuses what is half written")


def detector_checks(places: Mapping[str, str]) -> Iterator[CheckResult]:
    """Run each detector of the user's over a stream that changes: by name, where it is found."""
    for name, place in places.items():
        if name in detectors.DETECTORS:
            continue
        try:
            detectors.detector_of(place)
        except MillraceError as error:
            yield fail("detectors", error)
            continue
        found = [*of_detectors.complaints(partial(detectors.detector_of, place))]
        yield from (fail("detectors", ModelError(f"{detectors.SETTING}: {name}: {text}")) for text in found)
        if not found:
            yield ok("detectors", f"{name} marks the same after a restart, and takes sums of NaN")
