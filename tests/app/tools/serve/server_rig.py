"""A server of predictions in this process, on real exports, and whoever asks it."""

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from millrace.app.settings import load
from millrace.app.tools.serve.serving import PredictionServer
from tests.app.tools.serve.exports_rig import CONFIG

_WAIT_S = 60.0


class Server:
    """The server, and its exports."""

    def __init__(self, folder: Path, name: str, **environ: str) -> None:
        self.name, self.exports = name, folder / "exports" / name
        config = folder / f"{name}.yaml"
        if not config.exists():
            config.write_text(CONFIG.format(name=name))
        given = {f"MILLRACE_{key.upper()}": value for key, value in environ.items()}
        self.server = PredictionServer(load(config, given).settings, folder)
        self.url = f"http://127.0.0.1:{self.server.port}"
        self.http = httpx.Client(base_url=self.url, timeout=30)

    def predict(self, body: Any, at: str = "") -> httpx.Response:
        content = body if isinstance(body, str | bytes) else json.dumps(body)
        return self.http.post(f"/v1/models/{self.name}{at}:predict", content=content)

    def refused(self, body: Any, status: int = 400) -> str:
        """Return the text of an error in TF Serving's form."""
        answer = self.predict(body)
        assert answer.status_code == status, answer.text
        (error,) = answer.json().items()
        assert error[0] == "error"
        return str(error[1])

    def get(self, path: str = "") -> Any:
        return self.http.get(f"/v1/models/{self.name}{path}").json()

    def wait_for(self, condition: Callable[[], bool]) -> None:
        ends_at = time.monotonic() + _WAIT_S
        while not condition():
            assert time.monotonic() < ends_at, self.get("/served")
            time.sleep(0.02)

    def answers_with(self, number: int) -> None:
        """Wait until this version answers."""
        self.wait_for(lambda: self.get("/served").get("served") == number)


@contextmanager
def serving(folder: Path, name: str, **environ: str) -> Iterator[Server]:
    """Serve the folder's exports until the end of the block."""
    server = Server(folder, name, **environ)
    thread = threading.Thread(target=server.server.serve, name="http")
    thread.start()
    try:
        yield server
    finally:
        server.http.close()
        server.server.stop()
        thread.join(20)
        assert not thread.is_alive()
