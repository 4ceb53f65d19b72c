"""A user's settings, changed so that the model learns from the local broker and touches nothing that others see.

Pure, except for the files that it writes: the config of each trainer that is killed.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from millrace.app.settings import Settings, load
from millrace.app.tools.local_broker.broker import free_port
from millrace.training.checkpoints.folder import Folder

EVERY_S = 1.0
"""How often it saves: often, so that many kills fall into a save."""
_KAFKA_KEPT = ("topics", "weights", "isolation_level", "fetch_bytes", "chunk_records")
_LOOPBACK = "127.0.0.1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Apart:
    """Where the trainer of a proof lives."""

    path: Path
    cwd: Path
    config: Path
    port: int
    folder: Folder
    """Its checkpoints."""
    dead_letters: str
    """The topic that they go to."""


def set_apart(
    settings: Settings, bootstrap: str, path: Path, scale: Mapping[str, Any] = MappingProxyType({"workers": 1})
) -> Apart:
    """Write the config. The trainer runs in the present folder, so that the model finds the files that it opens.

    `scale` says which worker of which group it is.
    """
    path.mkdir(parents=True, exist_ok=True)
    port, letters = free_port(), _unlike(settings.kafka.topics)
    values = _changed(settings.model_dump(mode="json"), settings, bootstrap)
    values["records"]["dead_letters"]["topic"] = letters
    values["checkpoints"] = {"path": str(path / "checkpoints"), "every": f"{EVERY_S:g}s"}
    values["model"]["initial_weights"] = None
    values["api"] = {"listen": f"{_LOOPBACK}:{port}"}
    values["logs"] = {"format": "text", "level": "info"}
    values["scale"] = dict(scale)
    config = path / "millrace.yaml"
    config.write_text(json.dumps(values, indent=1))  # JSON is YAML
    folder = Folder(path / "checkpoints" / settings.name)
    return Apart(path=path, cwd=Path.cwd(), config=config, port=port, folder=folder, dead_letters=letters)


def set_group_apart(settings: Settings, bootstrap: str, path: Path, workers: int) -> Sequence[Apart]:
    """Write a config for each worker, the chief's first; ConfigError where the settings do not suit so many."""
    kept = settings.scale.model_dump(mode="json", include={"patience", "timeout"})
    addresses = [f"{_LOOPBACK}:{free_port()}" for _ in range(workers)]
    group = {**kept, "workers": workers, "addresses": addresses}
    members = [
        set_apart(settings, bootstrap, path / f"worker-{index}", {**group, "index": index}) for index in range(workers)
    ]
    load(members[0].config, {})
    return members


def _changed(values: dict[str, Any], settings: Settings, bootstrap: str) -> dict[str, Any]:
    build = settings.model.build
    kafka = {key: values["kafka"][key] for key in _KAFKA_KEPT}
    return {
        **values,
        "kafka": {**kafka, "bootstrap_servers": [bootstrap]},
        "model": {**values["model"], "build": f"{build.file}:{build.function}"},
    }


def _unlike(topics: tuple[str, ...]) -> str:
    """Return a topic's name that is none of these."""
    name = "set-aside"
    while name in topics:
        name += "-too"
    return name
