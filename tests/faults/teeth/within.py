"""A pytest plugin: one limit on the time of each test, whatever its markers say.

python -m pytest -p tests.faults.teeth.within --within 60
"""

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--within`."""
    parser.addoption("--within", type=float, help="what each test may take, in seconds, its fixtures included")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Be the nearest marker, which is the one that counts."""
    limit = config.getoption("--within")
    if limit is not None:
        for item in items:
            item.add_marker(pytest.mark.timeout(limit), append=False)
