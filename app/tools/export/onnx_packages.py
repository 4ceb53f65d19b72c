"""Whether what `export.formats: [saved_model, onnx]` needs is installed. Loads none of it."""

from collections.abc import Iterable
from importlib.util import find_spec

from millrace.consumers.errors import ConfigError

ONNX = "onnx"
_PACKAGES = ("onnx", "onnxruntime", "tf2onnx")


def require_packages(formats: Iterable[str]) -> None:
    """Raise ConfigError where a format of an export needs a package that is not there."""
    if ONNX in formats and (missing := [name for name in _PACKAGES if find_spec(name) is None]):
        raise ConfigError(
            f"export.formats: onnx needs packages that are not installed: {', '.join(missing)}; run pip install "
            "'millrace[onnx]', or write [saved_model]"
        )
