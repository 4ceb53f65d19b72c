"""Which millrace this is."""

from functools import cache
from importlib import metadata


@cache
def version() -> str:
    """Give the installed version; a source tree that is not installed has none. Read from the disk once."""
    try:
        return metadata.version("millrace")
    except metadata.PackageNotFoundError:
        return "0+not.installed"
