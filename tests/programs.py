"""Programs that some tests need and Python's registry does not have, such as a browser.

A machine without one skips those tests and says how to get it; where MILLRACE_TESTS_NEED_ALL is set, as in CI, that is
a failure, so that nothing goes untested unseen.
"""

import os
import shutil
from pathlib import Path

import pytest


def program(*names: str, how: str) -> Path:
    """Where the first of these that is there is; `how` says how to get it."""
    for name in names:
        if (found := shutil.which(name)) is not None:
            return Path(found)
    missing = f"no {' or '.join(names)} on this machine; {how}"
    if os.environ.get("MILLRACE_TESTS_NEED_ALL"):
        pytest.fail(missing)
    pytest.skip(missing)
