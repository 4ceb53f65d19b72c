"""TensorFlow's native lines, as lines of the log."""

import json
import logging
import os
import subprocess
import sys

import pytest

from millrace.app.service import native_log

PREAMBLE = "WARNING: All log messages before absl::InitializeLog() is called are written to STDERR"
ONEDNN = "I0000 00:00:1795359295.946652   21742 port.cc:153] oneDNN custom operations are on."
NO_GPU = "E0000 00:00:1795359298.839458   21742 cuda_platform.cc:52] failed call to cuInit: INTERNAL: CUDA error"
OLD_FORM = "2026-11-22 15:01:59.100000: W tensorflow/core/framework/local_rendezvous.cc:404] something else"


@pytest.fixture(autouse=True)
def _shown(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)


def logged(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    return [
        (record.levelname, record.getMessage())
        for record in caplog.records
        if record.name == "millrace.app.service.native_log"
    ]


@pytest.mark.parametrize(("expects_gpu", "level"), [(True, "ERROR"), (False, "DEBUG")])
def test_a_gpu_that_fails_is_an_error_where_a_gpu_is_expected(
    caplog: pytest.LogCaptureFixture, expects_gpu: bool, level: str
) -> None:
    native_log.log_native([PREAMBLE, ONEDNN, "To enable: AVX2", "", NO_GPU, OLD_FORM], expects_gpu=expects_gpu)
    assert logged(caplog) == [
        ("DEBUG", PREAMBLE),
        ("DEBUG", ONEDNN),
        ("DEBUG", "To enable: AVX2"),
        (level, NO_GPU),
        ("WARNING", OLD_FORM),
    ]


def test_what_nobody_knows_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    native_log.log_native(["libfoo.so: undefined symbol"], expects_gpu=False)
    assert logged(caplog) == [("WARNING", "libfoo.so: undefined symbol")]


def test_what_was_printed_is_logged_and_stderr_is_back_where_loading_raises(caplog: pytest.LogCaptureFixture) -> None:
    before = os.fstat(2)

    def load() -> None:
        with native_log._logging_stderr():
            os.write(2, b"cannot open shared object\n")
            raise ImportError("no module")

    with pytest.raises(ImportError):
        load()
    assert logged(caplog) == [("WARNING", "cannot open shared object")]
    after = os.fstat(2)
    assert (after.st_dev, after.st_ino) == (before.st_dev, before.st_ino)  # others may write to it meanwhile


CODE = """
import logging, sys
from millrace.app.service import logs
from millrace.app.service.native_log import load_tensorflow
logs.configure(form="json", level="{level}")
load_tensorflow()
import tensorflow as tf
tf.constant(1) + 1
logging.getLogger("app.x").info("loaded")
"""


@pytest.mark.tensorflow
@pytest.mark.parametrize("level", [pytest.param("info", marks=pytest.mark.nightly), "debug"])
def test_with_tensorflow_loaded_every_line_of_the_log_is_json(level: str) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "TF_CPP_MIN_LOG_LEVEL"}
    code = CODE.format(level=level)
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=240, env=environment, check=False
    )
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    assert lines[-1]["event"] == "loaded"
    native = [line["event"] for line in lines if line["logger"] == "app.service.native_log"]
    # Which lines there are depends on the processor, but not the first of them.
    assert (PREAMBLE in native) == (level == "debug")
