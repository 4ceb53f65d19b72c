"""What several tests of whole processes need."""

from collections.abc import Iterator

import pytest

from tests.schema_registry import SchemaRegistry


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SchemaRegistry]:
    """Give a registry that a test may kill and start."""
    registry = SchemaRegistry(tmp_path_factory.mktemp("registry"))
    registry.start()
    try:
        yield registry
    finally:
        registry.kill()
