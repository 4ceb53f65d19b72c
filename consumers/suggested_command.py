"""The commands that messages suggest: with the config file as the user gave it, so that they can be pasted.

Owns the path of the process's config file. The command line sets it once, while it parses its options and before any
thread starts; texts are made of it on any thread.
"""

import shlex

_NOT_GIVEN = "CONFIG"
_config: list[str] = []


def name_config(path: str | None) -> None:
    """Set the config file that suggested commands name; None where the process was given none."""
    _config[:] = [] if path is None else [path]


def suggested_command(*words: str) -> str:
    """Return a millrace command with the config file of this process, quoted for a shell.

    `suggested_command("rewind", "--to", "0")` is `millrace rewind -c clicks.yaml --to 0`. Without a config file, CONFIG
    stands in its place.
    """
    options = next((index for index, word in enumerate(words) if word.startswith("-")), len(words))
    config = shlex.quote(_config[0]) if _config else _NOT_GIVEN
    return " ".join(["millrace", *words[:options], "-c", config, *map(shlex.quote, words[options:])])


def install_of(extra: str) -> str:
    """Return the command that installs an extra from the wheel: millrace is on no package index."""
    return f'pip install "$(echo dist/*_$(uname -m).whl)[{extra}]"'
