"""Bad input to `millrace run`: one clear line each, the right exit code, no traceback, nothing lost."""

import asyncio
import json
import os
import socket
import subprocess
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

from millrace.app.tools.local_broker.broker import free_port
from tests.conftest import MakeTopic, Produce
from tests.consumers.kafka.foreign_names import FOREIGN, produce_foreign
from tests.faults.harness.fork_server import run_forked

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
MODEL = """\
import keras


def build_model(width=3):
    price = keras.Input((), name="price")
    hidden = keras.layers.Dense(width, name="hidden")(keras.layers.Reshape((1,))(price))
    model = keras.Model({"price": price}, keras.layers.Dense(1, name="clicked")(hidden))
    model.compile(optimizer="adam", loss="mse")
    return model
"""


@dataclass
class Config:
    """A config that would run, and what a case breaks of it."""

    folder: Path
    broker: str
    topic: str
    model: str = "./model.py:build_model"
    args: str = "{}"
    checkpoints: str = "./checkpoints"

    def write(self) -> Path:
        (self.folder / "model.py").write_text(MODEL)
        path = self.folder / "clicks.yaml"
        path.write_text(
            "name: clicks\n"
            f"kafka: {{bootstrap_servers: ['{self.broker}'], topics: [{self.topic}]}}\n"
            "records: {features: {price: float32}, label: {clicked: float32}}\n"
            f"model: {{build: '{self.model}', args: {self.args}}}\n"
            "training: {batch_size: 16}\n"
            f"checkpoints: {{path: {self.checkpoints}}}\n"
            "api: {listen: '127.0.0.1:0'}\n"
        )
        return path


def run(config: Config, *arguments: str) -> subprocess.CompletedProcess[str]:
    return run_forked(["run", "-c", str(config.write()), "--until", "now", *arguments], cwd=ROOT, env=os.environ)


def complaint(done: subprocess.CompletedProcess[str], exit_code: int) -> str:
    """Return the one line that it ended with."""
    assert done.returncode == exit_code, done.stderr
    assert "Traceback" not in done.stderr
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("millrace: error:")]
    assert done.stderr.splitlines()[-1] == line
    return line


@pytest.fixture
def config(tmp_path: Path, broker: str, topic: MakeTopic, produce: Produce) -> Config:
    name = topic()
    produce(name, [json.dumps({"price": n / 7, "clicked": n % 2}).encode() for n in range(40)])
    return Config(tmp_path, broker, name)


def nothing_saved(config: Config) -> bool:
    return not [*config.folder.glob("checkpoints/clicks/checkpoints/0*")]


def files(config: Config) -> dict[Path, bytes]:
    """Return every file of the checkpoints with its contents."""
    checkpoints = config.folder / "checkpoints" / "clicks" / "checkpoints"
    return {path: path.read_bytes() for path in checkpoints.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def unanswered(tmp_path_factory: pytest.TempPathFactory) -> dict[str, subprocess.CompletedProcess[str]]:
    """How it ends where nobody listens, and where somebody does who is no broker; side by side, as both wait long."""
    with socket.create_server(("127.0.0.1", 0)) as stranger, ThreadPoolExecutor(2) as pool:
        ports = {"nobody": free_port(), "stranger": stranger.getsockname()[1]}
        configs = {
            who: Config(tmp_path_factory.mktemp(who), f"127.0.0.1:{port}", "clicks") for who, port in ports.items()
        }
        return dict(zip(configs, pool.map(run, configs.values()), strict=True))


def test_no_broker(unanswered: dict[str, subprocess.CompletedProcess[str]]) -> None:
    assert "kafka.bootstrap_servers" in complaint(unanswered["nobody"], 3)


def test_a_port_where_something_else_listens(unanswered: dict[str, subprocess.CompletedProcess[str]]) -> None:
    assert "kafka.bootstrap_servers" in complaint(unanswered["stranger"], 3)


def test_a_missing_topic(config: Config) -> None:
    config.topic = "not-there"
    line = complaint(run(config), 3)
    assert "topic not-there is not at" in line
    assert "--create --topic not-there" in line
    assert "millrace local produce --bootstrap-servers" in line
    assert nothing_saved(config)


def test_a_header_whose_name_is_not_utf_8_costs_no_record_and_ends_no_run(config: Config) -> None:
    good, headers = b'{"price": 1.5, "clicked": 1}', ((FOREIGN, b"38"),)
    asyncio.run(produce_foreign(config.broker, config.topic, [(None, good, headers), (None, b"{", headers)]))
    asyncio.run(produce_foreign(config.broker, config.topic, [(None, good, ())] * 9))
    done = run(config)
    assert done.returncode == 0, done.stderr
    newest = max(config.folder.glob("checkpoints/clicks/checkpoints/*/ledger.json"))
    (partition,) = json.loads(newest.read_text())["partitions"].values()
    assert (partition["learnt"], partition["set_aside"]) == (50, {"malformed": 1})


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ("./model.py", "write ./model.py:build_model"),
        (
            "./broken.py:build_model",
            "broken.py does not import: ModuleNotFoundError: No module named 'nowhere' (line 1)",
        ),
    ],
)
def test_a_model_path_that_does_not_import(config: Config, model: str, said: str) -> None:
    (config.folder / "broken.py").write_text("import nowhere\n")
    config.model = model
    assert said in complaint(run(config), 2)
    assert nothing_saved(config)


def test_a_model_whose_inputs_do_not_fit(config: Config) -> None:
    (config.folder / "other.py").write_text(MODEL.replace('"price"', '"cost"'))
    config.model = "./other.py:build_model"
    line = complaint(run(config), 2)
    assert "cost: the model wants float32, the schema has nothing" in line
    assert "price: the model wants nothing, the schema has float32" in line


def test_an_unwritable_folder(config: Config) -> None:
    (config.folder / "checkpoints").write_text("a file stands here")
    assert "checkpoints.path: cannot write to" in complaint(run(config), 2)


def test_a_checkpoint_of_another_model(config: Config) -> None:
    first = run(config)
    assert first.returncode == 0, first.stderr
    assert (before := files(config))
    config.args = "{width: 5}"
    line = complaint(run(config), 2)
    assert "hidden/kernel is [1, 5] here and [1, 3] there" in line
    assert "give the new model a name of its own" in line
    assert files(config) == before, "what was refused has touched nothing"


def test_settings_with_several_mistakes_have_a_line_each(tmp_path: Path) -> None:
    path = tmp_path / "clicks.yaml"
    path.write_text("name: clicks\nkafka: {topcis: [clicks]}\n")
    done = run_forked(["run", "-c", str(path)], cwd=ROOT, env=os.environ)
    assert done.returncode == 2
    lines = done.stderr.splitlines()
    assert len(lines) > 3
    assert all(line.startswith("millrace: error: ") for line in lines)


def test_records_that_are_not_what_the_schema_says_are_set_aside(config: Config, produce: Produce) -> None:
    produce(config.topic, [b"not json", b'{"price": "dear", "clicked": 1}', b"", None])
    done = run(config)
    assert done.returncode == 0, done.stderr
    shown = run_forked(
        ["checkpoints", "show", "1", "-c", str(config.folder / "clicks.yaml"), "--json"], cwd=ROOT, env=os.environ
    )
    assert shown.returncode == 0, shown.stderr
    (facts,) = json.loads(shown.stdout)["history"].values()
    assert facts["learnt"] == 40
    assert facts["set_aside"] == {"malformed": 1, "wrong_type": 1, "empty": 2}
