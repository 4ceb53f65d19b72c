"""`millrace serve`: answers requests with the exports of a model."""

# ruff: noqa: PLC0415 - signals are handled before the slow imports, and a mistyped option is refused before TensorFlow

import logging
import threading

from millrace.app.cli.config_file import ConfigFile, config_file
from millrace.app.service.process import SERVING_SWITCH_S, Signals, sparing_imports, tune

log = logging.getLogger(__name__)


def serve(file: ConfigFile = None) -> None:
    """Answer TF Serving's REST requests with the newest export of the model, and swap to each newer one, until stopped.

    It follows the folder of the exports, or the trainer over HTTP (serve.exports). On Ctrl-C or SIGTERM it answers what
    is in progress and exits 0; a second signal ends it at once. Example: millrace serve -c clicks.yaml
    """
    signals = Signals()
    signals.install()
    with sparing_imports():
        from millrace.app.settings import load

        notes: list[str] = []
        path = config_file(file, notes.append)
        loaded = load(path)
        from millrace.app.service.logs import configure
        from millrace.app.service.native_log import load_tensorflow

        logs = loaded.settings.logs
        configure(name=loaded.settings.name, form=logs.format, level=logs.level)
        load_tensorflow()
        from millrace.app.tools.serve.serving import PredictionServer

    for text in notes:
        log.info("%s", text)
    for warning in loaded.warnings:
        log.warning("%s", warning)
    server = PredictionServer(loaded.settings, path.absolute().parent)
    signals.begin()

    def end() -> None:
        signals.asked.wait()
        server.stop()

    tune(SERVING_SWITCH_S)
    threading.Thread(target=end, name="signals", daemon=True).start()
    server.serve()
