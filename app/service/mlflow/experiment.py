"""A run of one model on an MLflow server, and the versions that are registered there.

Imports MLflow, so only the thread `mlflow` imports this module, and only where a server is set. A run is one model with
one config: a start with the same config goes on with the run that there is, found by its tags, and one with another
config begins a run. A version is registered once, which its tags show. What is there is asked, not remembered, before
anything is made: whichever call fails, or whose answer is lost, the next attempt makes what is missing and no more.
"""

import hashlib
import json
import math
import re
import time
from collections.abc import Iterator, Mapping

from mlflow.entities import Metric, Param, Run
from mlflow.exceptions import MlflowException
from mlflow.tracking import MlflowClient

from millrace.training.checkpoints.exports.version_folder import ExportManifest, VersionFolder
from millrace.training.telemetry.live_metrics import LiveSnapshot

_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_\-. :/]")
_LONGEST_NAME, _LONGEST = 250, 6000
"""Characters of a name, and of a parameter's value, that a server takes."""
_AT_ONCE = 100
_EXISTS = "RESOURCE_ALREADY_EXISTS"


class Experiment:
    """Talks with the server about one model. Any call may raise what MLflow raises. Used on one thread."""

    def __init__(self, tracking_uri: str, experiment: str, name: str, settings: Mapping[str, str]) -> None:
        """Take the settings of the config by dotted key, with secrets masked."""
        self._client = MlflowClient(tracking_uri=tracking_uri, registry_uri=tracking_uri)
        self._experiment, self._name, self._settings = experiment, name, settings
        self._run: Run | None = None
        self._registered = set[str]()
        """Versions of which it is known."""

    def begin(self) -> str:
        """Find the run of this model with this config, or make it; return its id."""
        if self._run is None:
            run = self._found_or_made()
            params = {_named(key): value[:_LONGEST] for key, value in self._settings.items()}
            missing = [Param(key, value) for key, value in params.items() if key not in run.data.params]
            for first in range(0, len(missing), _AT_ONCE):
                self._client.log_batch(run.info.run_id, params=missing[first : first + _AT_ONCE])
            self._run = run
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
        if identity in self._registered or self._is_registered(identity):
            self._registered.add(identity)
            return False
        self._make_model()
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

    def _found_or_made(self) -> Run:
        """Return the newest run of this model and this config, which goes on, or a new one."""
        config = hashlib.sha256(json.dumps(self._settings, sort_keys=True).encode()).hexdigest()
        tags = {"millrace.name": self._name, "millrace.config": config}
        wanted = " and ".join(f"tags.`{tag}` = '{value}'" for tag, value in tags.items())
        experiment = self._experiment_id()
        found = self._client.search_runs([experiment], wanted, order_by=["attributes.start_time DESC"], max_results=1)
        if not found:
            return self._client.create_run(experiment, run_name=self._name, tags=tags)
        self._client.update_run(found[0].info.run_id, status="RUNNING")
        return found[0]

    def _experiment_id(self) -> str:
        found = self._client.get_experiment_by_name(self._experiment)
        if found is not None:
            return str(found.experiment_id)
        return str(self._client.create_experiment(self._experiment))

    def _is_registered(self, identity: str) -> bool:
        wanted = f"name = '{self._name}' and tags.`millrace.version` = '{identity}'"
        return bool(self._client.search_model_versions(wanted, max_results=1))

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
                yield _named(kind + name), value


def _tags(manifest: ExportManifest, identity: str) -> dict[str, str]:
    metrics = {_named(f"millrace.{name}"): f"{value:.6g}" for name, value in manifest.metrics.items()}
    return {
        "millrace.version": identity,
        "millrace.checkpoint": str(manifest.checkpoint.number),
        "millrace.records": str(manifest.records),
        "millrace.positions": json.dumps(manifest.positions),
        **metrics,
    }


def _named(text: str) -> str:
    """Return a name that a server takes."""
    return _NOT_IN_NAMES.sub("_", text)[:_LONGEST_NAME]
