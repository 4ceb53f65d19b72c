"""Which millrace this is, and which libraries it runs with."""

from functools import cache
from importlib import metadata

_ALSO = {"tensorflow": ("tensorflow-cpu", "tensorflow-gpu")}
"""Other packages that bring the same module."""


@cache
def version() -> str:
    """Return the installed version, read once; a placeholder for a source tree that is not installed."""
    try:
        return metadata.version("millrace")
    except metadata.PackageNotFoundError:
        return "0+not.installed"


def version_of(library: str) -> str:
    """Return the version of a library, whichever package has brought it; PackageNotFoundError where none has."""
    for package in (library, *_ALSO.get(library, ())):
        try:
            return metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    raise metadata.PackageNotFoundError(library)
