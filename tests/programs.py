"""Programs that some tests need and Python's registry does not have, such as a browser.

On a machine without one, those tests are skipped with the way to get it. Where MILLRACE_TESTS_NEED_ALL is set, as in
CI, that is a failure, so that no test is skipped unnoticed.
"""

import os
import shutil
import sys
from pathlib import Path

import pytest

MISSING = "not on this machine: "
"""How the reason of such a skip begins: the list of skips permits it."""


def program(*names: str, how: str) -> Path:
    """Return the first of these programs that is beside the interpreter or on PATH; `how` says how to get it."""
    places = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    for name in names:
        if (found := shutil.which(name, path=places)) is not None:
            return Path(found)
    missing = f"{MISSING}{' or '.join(names)}; {how}"
    if os.environ.get("MILLRACE_TESTS_NEED_ALL"):
        pytest.fail(missing)
    pytest.skip(missing)
