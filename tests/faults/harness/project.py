"""A user's folder: model.py, a config, and the checkpoints that come of them."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from millrace.app.tools.local_broker.broker import free_port
from millrace.training.checkpoints.folder import Folder
from tests.faults.harness.records import WIDTH
from tests.faults.harness.topics import Topic

_MODEL = Path(__file__).parent / "model.py"
FEATURES = {
    "x": {"dtype": "float32", "shape": [WIDTH]},
    "curse": "float32",
    "id": "int64",
    "partition": "int32",
}
"""What the model takes in."""


class Project:
    """One config, written once."""

    def __init__(self, path: Path, topic: Topic, **sections: Mapping[str, Any]) -> None:
        self.path = path
        self.name = f"m-{topic.name}"
        self.port = free_port()
        path.mkdir(parents=True, exist_ok=True)
        shutil.copy(_MODEL, path / "model.py")
        self.config = path / "millrace.yaml"
        self.config.write_text(json.dumps(self._settings(topic, sections), indent=1))  # JSON is YAML

    @property
    def cwd(self) -> Path:
        """Where its trainer runs."""
        return self.path

    @property
    def folder(self) -> Folder:
        """Where its checkpoints are."""
        return Folder(self.path / "checkpoints" / self.name)

    @property
    def group(self) -> str:
        """Under which it commits."""
        return f"millrace-{self.name}"

    def _settings(self, topic: Topic, sections: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
        settings: dict[str, Any] = {
            "name": self.name,
            "kafka": {"bootstrap_servers": [topic.bootstrap], "topics": [topic.name]},
            "records": {
                "format": "json",
                "features": FEATURES,
                "label": {"y": {"dtype": "float32", "one_of": [0, 1]}},
            },
            "model": {"build": "./model.py:build_model"},
            "training": {"batch_size": 64, "batches_per_call": 4, "max_wait": "200ms"},
            "checkpoints": {"path": "./checkpoints", "every": "1s"},
            "api": {"listen": f"127.0.0.1:{self.port}"},
            "logs": {"format": "text"},
        }
        for name, section in sections.items():
            settings[name] = {**settings.get(name, {}), **section}
        return settings
