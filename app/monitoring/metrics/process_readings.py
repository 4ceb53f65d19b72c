"""Readings of the process itself: versions, hashes, loops, processor and memory.

The process is read from /proc, which is memory, by the collector of Prometheus' own client; where there is no /proc,
those readings are not there.
"""

import platform
from collections.abc import Iterator
from importlib.metadata import version

from prometheus_client import ProcessCollector

from millrace.app.monitoring.metrics.catalogue import CATALOGUE
from millrace.app.monitoring.metrics.reading import Reading
from millrace.app.monitoring.observer import Observation
from millrace.app.monitoring.snapshot import Snapshot
from millrace.consumers.metric import PREFIX


class OfTheProcess:
    """Reads what does not change once, and the rest each time."""

    def __init__(self) -> None:
        self._versions = (platform.python_version(), version("tensorflow"), version("keras"))
        self._process = ProcessCollector(namespace=PREFIX.rstrip("_"), registry=None)

    def __call__(self, observation: Observation) -> Iterator[Reading]:
        """Yield the readings of the process."""
        snapshot = observation.snapshot
        yield Reading("build_info", 1, (snapshot.version, *self._versions))
        yield from _deployment(snapshot)
        yield Reading("loop_lag_seconds", observation.loop_lag_p99_s, ("api",))
        if snapshot.fetching_began:
            yield Reading("loop_lag_seconds", snapshot.source.loop_lag_p99_s, ("consumer",))
        for family in self._process.collect():
            for sample in family.samples:
                if (short := sample.name.removeprefix(PREFIX)) in CATALOGUE:
                    yield Reading(short, sample.value)


def _deployment(snapshot: Snapshot) -> Iterator[Reading]:
    if wrote := snapshot.provenance:
        hashes = (str(wrote.get(name) or "") for name in ("model_sha256", "config_sha256", "cluster_id"))
        yield Reading("deployment_info", 1, (*hashes, snapshot.settings.kafka.group))
