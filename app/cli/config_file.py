"""Which config file a command takes: the one that -c names, or else the one in the current folder.

Imports nothing that is slow: `millrace run` handles signals before the slow imports.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from millrace.app.cli.notes import note

ConfigFile = Annotated[
    Path | None, typer.Option("--config", "-c", help="The config file; default: ./millrace.yaml, or millrace.yml.")
]
_DEFAULTS = ("millrace.yaml", "millrace.yml")


def default_config() -> Path | None:
    """Return the config file of the current folder, or None. ConfigError if there are two."""
    present = [Path(name) for name in _DEFAULTS if Path(name).exists()]
    if len(present) > 1:
        raise _config_error(f"{' and '.join(_DEFAULTS)} are both in this folder; name the config file with -c FILE")
    return present[0] if present else None


def config_file(file: Path | None, say: Callable[[str], object] = note) -> Path:
    """Return the config file that -c names, or else the one of the current folder, and say that it was taken.

    Commands that messages suggest name this file from now on.
    """
    from millrace.consumers.suggested_command import name_config  # noqa: PLC0415 - loads numpy

    if file is not None:
        name_config(str(file))
        return file
    found = default_config()
    if found is None:
        raise _config_error(
            f"there is no {_DEFAULTS[0]} in this folder: name the config file with -c FILE, or draft one by "
            "`millrace init --topic TOPIC`"
        )
    name_config(str(found))
    say(f"the config is ./{found}")
    return found


def _config_error(text: str) -> Exception:
    from millrace.consumers.errors import ConfigError  # noqa: PLC0415 - loads numpy

    return ConfigError(text)
