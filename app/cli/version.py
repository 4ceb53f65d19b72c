"""`millrace version`: the versions that a report of a defect should name."""

import platform
from importlib import metadata

import typer

from millrace.app.cli.options import Json, print_json
from millrace.app.version import version as own_version
from millrace.app.version import version_of

_LIBRARIES = ("tensorflow", "keras", "numpy", "pyarrow", "aiokafka")


def version(as_json: Json = False) -> None:
    """Print the versions of millrace, Python and the libraries that it runs on.

    Example: millrace version --json
    """
    versions = {
        "millrace": own_version(),
        "python": platform.python_version(),
        **{library: _of(library) for library in _LIBRARIES},
    }
    if as_json:
        print_json(versions)
    else:
        typer.echo("\n".join(f"{name} {number}" for name, number in versions.items()))


def _of(library: str) -> str:
    try:
        return version_of(library)
    except metadata.PackageNotFoundError:
        return "not installed"
