"""The demo's folder with everything in it, and the ports that it uses.

The config is written at each start, because the ports may differ; the model file only where there is none, so that it
can be edited. A port that another program has is skipped, unless the user asked for it.
"""

import shutil
from dataclasses import dataclass
from pathlib import Path

from millrace.app.tools.demo import drifting_stream
from millrace.app.tools.local_broker.broker import HOST, is_free
from millrace.consumers.errors import ConfigError
from millrace.training.checkpoints.folder import Folder

NAME = "demo"
LIVE_WINDOW_S = 5
_API_PORT, _BROKER_PORT = 8080, 9092
_PORTS_TRIED = 50
_WRITTEN_BY = b"# Written by `millrace demo`"
_CONFIG = """\
# Written by `millrace demo` at each start. Other commands take it too, while the demo runs or after it:
#   millrace status -c {path}
name: {name}
kafka: {{bootstrap_servers: [{broker}], topics: [{topic}]}}
records:
  format: json
  features: {{item: string, price: float32, discount: float32, hour: int32}}
  label: {{bought: float32}}
  dead_letters: {{topic: {dead_letters}}}
model: {{build: ./model.py:build_model}}
training: {{batch_size: 128, passes: 4, max_wait: 100ms, live_metrics: {{window: {window}s}}, detectors: [drift]}}
checkpoints: {{path: ./checkpoints, every: 5s, keep: {{last: 30}}}}
api: {{listen: {api}}}
stop: {{grace: 10s}}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workspace:
    """The folder, and the paths in it."""

    path: Path

    @property
    def broker(self) -> Path:
        """The broker's data and log."""
        return self.path / "broker"

    @property
    def config(self) -> Path:
        """The trainer's settings."""
        return self.path / "millrace.yaml"

    @property
    def report(self) -> Path:
        """The figures of the last run."""
        return self.path / "report.json"

    @property
    def frozen(self) -> Path:
        """The weights as they were when each drift began."""
        return self.path / "frozen"

    @property
    def checkpoints(self) -> Folder:
        """The trainer's checkpoints."""
        return Folder(self.path / "checkpoints" / NAME)

    def log(self, of: str) -> Path:
        """Return the log of a child."""
        return self.path / f"{of}.log"

    def pid_file(self, child: str) -> Path:
        """Return the file that notes the process id of a child, for a start after a kill."""
        return self.path / f"{child}.pid"

    def create(self) -> None:
        """Create the folder with the model. ConfigError where that fails, or where the folder is not the demo's."""
        ours, model = Path(__file__).with_name("model.py"), self.path / "model.py"
        try:
            # Refuse a config that the demo has not written, and a model that does not stand beside one.
            if self.config.exists():
                foreign = None if self.config.read_bytes().startswith(_WRITTEN_BY) else self.config
            else:
                foreign = model if model.exists() and model.read_bytes() != ours.read_bytes() else None
            if foreign is not None:
                raise ConfigError(
                    f"{foreign} is not the demo's own, and would be written over or run; choose another --folder"
                )
            self.frozen.mkdir(parents=True, exist_ok=True)
            if not model.exists():
                shutil.copy(ours, model)
        except OSError as error:
            raise ConfigError(f"cannot write in {self.path}: {error.strerror}; choose another --folder") from error

    def write_config(self, *, broker: str, api_port: int) -> None:
        """Write the trainer's settings."""
        text = _CONFIG.format(
            path=self.config,
            name=NAME,
            broker=broker,
            topic=drifting_stream.TOPIC,
            dead_letters=drifting_stream.DEAD_LETTERS,
            window=LIVE_WINDOW_S,
            api=f"{HOST}:{api_port}",
        )
        self.config.write_text(text)


def api_port(asked: int | None) -> int:
    """Return the port of the page: the one that was asked for, else the first free one from 8080."""
    if asked is None:
        return _first_free(_API_PORT, "choose one with --port")
    if not is_free(asked):
        raise ConfigError(f"--port {asked} is taken by another program; leave it out, and a free one is found")
    return asked


def broker_port(*, besides: int | None) -> int:
    """Return the port for Kafka: the first free one from 9092, except the port that the page was asked to use."""
    return _first_free(_BROKER_PORT, "end a program that has one of them: Kafka needs it", besides=besides)


def _first_free(port: int, way_out: str, *, besides: int | None = None) -> int:
    for candidate in range(port, port + _PORTS_TRIED):
        if candidate != besides and is_free(candidate):
            return candidate
    raise ConfigError(f"none of the ports {port} to {port + _PORTS_TRIED - 1} is free; {way_out}")
