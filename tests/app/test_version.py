"""Versions of libraries, whichever package has brought them."""

import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from millrace.app.version import version_of

ROOT = Path(__file__).parents[2]


def test_tensorflow_for_cpus_is_tensorflow(tmp_path: Path) -> None:
    """In an environment that has `tensorflow-cpu` in place of `tensorflow`, as docs/install.md makes one."""
    (tmp_path / "tensorflow_cpu-2.21.0.dist-info").mkdir()
    (tmp_path / "tensorflow_cpu-2.21.0.dist-info" / "METADATA").write_text("Name: tensorflow-cpu\nVersion: 2.21.0\n")
    code = (
        f"import sys; sys.path += [{str(ROOT)!r}, {str(tmp_path)!r}]; "
        "from millrace.app.version import version_of; print(version_of('tensorflow'))"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "2.21.0\n"


def test_a_library_that_no_package_has_brought_is_missing() -> None:
    assert version_of("keras") == metadata.version("keras")
    with pytest.raises(metadata.PackageNotFoundError, match="no-such-library"):
        version_of("no-such-library")
