"""The check of the exports: what their formats need is installed."""

from collections.abc import Sequence

from millrace.app.tools.export.onnx_packages import require_packages
from millrace.app.tools.validate.check import CheckResult, fail, ok
from millrace.consumers.errors import ConfigError


def export_check(formats: Sequence[str]) -> CheckResult:
    """Check that exports of these formats can be made on this machine."""
    try:
        require_packages(formats)
    except ConfigError as error:
        return fail("export", error)
    return ok("export", f"what versions with {' and '.join(formats)} need is installed")
