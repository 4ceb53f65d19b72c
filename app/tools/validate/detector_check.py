"""The checks of the detectors: each can be loaded, and keeps what every detector keeps."""

from collections.abc import Iterator, Mapping
from functools import partial

from millrace.app.tools.validate.check import CheckResult, fail, ok
from millrace.consumers.errors import MillraceError
from millrace.training.detectors.conformance import complaints
from millrace.training.detectors.detectors import DETECTORS, SETTING, detector_of
from millrace.training.errors import ModelError


def detector_checks(places: Mapping[str, str]) -> Iterator[CheckResult]:
    """Run each detector of the user's over a stream that changes: by name, where it is found."""
    for name, place in places.items():
        if name in DETECTORS:
            continue
        try:
            detector_of(place)
        except MillraceError as error:
            yield fail("detectors", error)
            continue
        found = [*complaints(partial(detector_of, place))]
        yield from (fail("detectors", ModelError(f"{SETTING}: {name}: {text}")) for text in found)
        if not found:
            yield ok("detectors", f"{name} marks the same after a restart, and takes sums of NaN")
