"""Which millrace this is."""

from functools import cache
from importlib import metadata


@cache
def version() -> str:
    """Return the installed version, read once; a placeholder for a source tree that is not installed."""
    try:
        return metadata.version("millrace")
    except metadata.PackageNotFoundError:
        return "0+not.installed"
