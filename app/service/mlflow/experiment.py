"""A run of one model on an MLflow server, and the versions that are registered there.

Imports MLflow, so only the thread `mlflow` imports this module, and only where a server is set. A run is one model with
one config: a start with the same config goes on with the run that there is, found by its tags, and one with another
config begins a run. A version is registered once, which its tags show.
"""

import hashlib
import json
import math
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from mlflow.entities import Metric, Param, Run
from mlflow.exceptions import MlflowException
from mlflow.tracking import MlflowClient

from millrace.training.checkpoints.exports.version_folder import ExportManifest, VersionFolder
from millrace.training.telemetry.live_metrics import LiveSnapshot

_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_\-. :/]")
_LONGEST = 6000
"""Characters of a parameter's value that a server takes."""
_AT_ONCE = 100
_EXISTS = "RESOURCE_ALREADY_EXISTS"


class Experiment:
    """Talks with the server about one model. Any call may raise what MLflow raises. Used on one thread."""

    def __init__(self, tracking_uri: str, experiment: str, name: str, settings: Mapping[str, str]) -> None:
        """Take the settings of the config by dotted key, with secrets masked."""
        self._client = MlflowClient(tracking_uri=tracking_uri, registry_uri=tracking_uri)
        self._experiment, self._name, self._settings = experiment, name, settings
        self._run: Run | None = None
        self._registered: set[str] | None = None

    def begin(self) -> str:
        """Find the run of this model with this config, or make it; return its id."""
        if self._run is None:
            self._run = self._found() or self._made()
        return str(self._run.info.run_id)

    def log(self, live: LiveSnapshot, learning_rate: float) -> None:
        """Send the scores, by the records that were scored since checkpoint number 0."""
        now_ms = round(time.time() * 1000)
        metrics = [Metric(name, value, now_ms, live.cumulative_records) for name, value in _scores(live)]
        metrics.append(Metric("learning_rate", learning_rate, now_ms, live.cumulative_records))
        self._client.log_batch(self.begin(), metrics=metrics)

    def register(self, folder: VersionFolder, manifest: ExportManifest) -> bool:
        """Send a version and register it, unless that was done; return whether it was now."""
        identity = f"{manifest.number}:{manifest.checkpoint.sha256}"
        if self._registered is None:
            self._make_model()
            versions = self._client.search_model_versions(f"name = '{self._name}'")
            self._registered = {version.tags.get("millrace.version", "") for version in versions}
        if identity in self._registered:
            return False
        run, place = self.begin(), f"exports/{manifest.number}"
        self._client.log_artifacts(run, str(folder.version(manifest.number)), place)
        source = f"{self._client.get_run(run).info.artifact_uri}/{place}"
        self._client.create_model_version(self._name, source, run, tags=_tags(manifest, identity))
        self._registered.add(identity)
        return True

    def end(self) -> None:
        """Say that the run stands still."""
        if self._run is not None:
            self._client.set_terminated(self._run.info.run_id, "FINISHED")

    def _found(self) -> Run | None:
        """Return the newest run of this model and this config, which goes on."""
        tags = (f"tags.`{tag}` = '{value}'" for tag, value in self._identity().items())
        found = self._client.search_runs(
            [self._experiment_id()], " and ".join(tags), order_by=["attributes.start_time DESC"], max_results=1
        )
        for run in found:
            self._client.update_run(run.info.run_id, status="RUNNING")
            return run
        return None

    def _made(self) -> Run:
        run = self._client.create_run(self._experiment_id(), run_name=self._name, tags=self._identity())
        params = [Param(key, value[:_LONGEST]) for key, value in self._settings.items()]
        for some in _portions(params):
            self._client.log_batch(run.info.run_id, params=some)
        return run

    def _identity(self) -> dict[str, str]:
        config = hashlib.sha256(json.dumps(self._settings, sort_keys=True).encode()).hexdigest()
        return {"millrace.name": self._name, "millrace.config": config}

    def _experiment_id(self) -> str:
        found = self._client.get_experiment_by_name(self._experiment)
        if found is not None:
            return str(found.experiment_id)
        return str(self._client.create_experiment(self._experiment))

    def _make_model(self) -> None:
        try:
            self._client.create_registered_model(self._name, description="Made by millrace.")
        except MlflowException as error:
            if error.error_code != _EXISTS:
                raise


def _scores(live: LiveSnapshot) -> Iterator[tuple[str, float]]:
    kinds = {"": live.values, "baseline/": live.baseline, "no_change/": live.no_change, "since_0/": live.cumulative}
    for kind, values in kinds.items():
        for name, value in values.items():
            if math.isfinite(value):
                yield kind + _NOT_IN_NAMES.sub("_", name), value


def _tags(manifest: ExportManifest, identity: str) -> dict[str, str]:
    metrics = {f"millrace.{name}": f"{value:.6g}" for name, value in manifest.metrics.items()}
    return {
        "millrace.version": identity,
        "millrace.checkpoint": str(manifest.checkpoint.number),
        "millrace.records": str(manifest.records),
        "millrace.positions": json.dumps(manifest.positions),
        **metrics,
    }


def _portions(params: Sequence[Param]) -> Iterator[list[Any]]:
    yield from (list(params[first : first + _AT_ONCE]) for first in range(0, len(params), _AT_ONCE))
