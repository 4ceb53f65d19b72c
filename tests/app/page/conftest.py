from collections.abc import Iterator

import pytest

from tests.app.api_rig import Rig, serving


@pytest.fixture
def url(rig: Rig) -> Iterator[str]:
    """Where the service can be asked."""
    with serving(rig) as server:
        yield f"http://127.0.0.1:{server.port}"
