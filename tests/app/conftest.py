import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import pytest

from millrace.app.settings import Loaded, load
from millrace.consumers.errors import ConfigError

if TYPE_CHECKING:
    from tests.app.api_rig import Client, Rig

FIVE_LINES = """\
name: clicks                      # all is derived from it
kafka:   {bootstrap_servers: [localhost:9092], topics: [clicks]}
records: {format: json, features: {price: float32, ad: string, hour: int32}, label: {clicked: float32}}
model:   {build: ./model.py:build_model}
checkpoints: {path: ./checkpoints}
"""


class LoadText(Protocol):
    def __call__(self, text: str = ..., **environ: str) -> Loaded: ...


@pytest.fixture
def load_text(tmp_path: Path) -> LoadText:
    """Load a config file of this text, under this environment and no other."""

    def load_it(text: str = FIVE_LINES, **environ: str) -> Loaded:
        path = tmp_path / "clicks.yaml"
        path.write_text(text)
        return load(path, environ)

    return load_it


@pytest.fixture
def problems(load_text: LoadText, tmp_path: Path) -> Callable[..., list[str]]:
    """The lines that a text is refused with, the folder left out."""

    def refused(text: str = FIVE_LINES, **environ: str) -> list[str]:
        with pytest.raises(ConfigError) as caught:
            load_text(text, **environ)
        assert caught.value.exit_code == 2
        return str(caught.value).replace(f"{tmp_path}/", "").splitlines()

    return refused


@pytest.fixture
def problem(problems: Callable[..., list[str]]) -> Callable[..., str]:
    """The one line that the five lines and these further ones are refused with."""

    def one(further: str, **environ: str) -> str:
        (line,) = problems(FIVE_LINES + further, **environ)
        return line

    return one


@pytest.fixture
def token() -> Iterator[Path]:
    """A token's file that every user can read, in a folder that lets others in, unlike pytest's own folders."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        file = Path(folder) / "ops"
        file.write_text("canary-4711-canary-4711")
        file.chmod(0o644)
        yield file


@pytest.fixture
def forked_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fork the fresh processes of exports in this process, instead of starting Python for each."""
    from tests.app.tools.export.forked_modules import fork_modules

    fork_modules(monkeypatch)


@pytest.fixture
def rig(tmp_path: Path) -> Iterator["Rig"]:
    """A service at work, but for Kafka and the model."""
    from tests.app.api_rig import running

    with running(tmp_path) as made:
        yield made


@pytest.fixture
def api(rig: "Rig") -> Iterator["Client"]:
    """Whoever asks it over HTTP."""
    from tests.app.api_rig import Client

    client = Client(rig)
    yield client
    client.close()


@pytest.fixture(scope="module")
def standing(tmp_path_factory: pytest.TempPathFactory) -> Iterator["Client"]:
    """Whoever asks one service that the tests of a module share: for what is refused, and so changes nothing of it."""
    from tests.app.api_rig import Client, running

    with running(tmp_path_factory.mktemp("standing")) as rig:
        client = Client(rig)
        yield client
        client.close()
