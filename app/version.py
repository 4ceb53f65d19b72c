"""Which millrace this is."""

from importlib import metadata


def version() -> str:
    """Give the installed version; a source tree that is not installed has none."""
    try:
        return metadata.version("millrace")
    except metadata.PackageNotFoundError:
        return "0+not.installed"
