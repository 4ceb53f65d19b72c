"""The command line as texts have it: its verbs, and whether a line would be understood. Nothing is run."""

from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

import typer

from millrace.app.cli.command_list import application


@cache
def verbs() -> dict[str, Any]:
    """Every command that does something, by what is typed."""

    def under(command: Any, path: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
        inner = getattr(command, "commands", None)
        if inner is None or getattr(command, "invoke_without_command", False):
            yield " ".join(path), command
        for name, one in (inner or {}).items():
            yield from under(one, (*path, name))

    return dict(under(typer.main.get_command(application), ()))


def understood(words: Sequence[str], *, whole: bool = True) -> str:
    """Give the verb of the words behind `millrace`; an exception says what of them would be refused.

    What is not `whole`, as a few words in the middle of a sentence, may leave out what the verb asks for.
    """
    verb = next((name for count in (2, 1) if (name := " ".join(words[:count])) in verbs()), None)
    if verb is None:
        raise LookupError(f"millrace has no verb {' '.join(words[:2])!r}")
    arguments = [*words[len(verb.split()) :]]
    while True:
        try:
            with verbs()[verb].make_context(verb, [*arguments]):
                return verb
        except typer.Exit:  # --help
            return verb
        except typer.BadParameter as error:
            if type(error).__name__ == "MissingParameter" and not whole:
                arguments += _stand_in(error.param)
            elif "No such file" in str(error):  # whoever types it has the file
                return verb
            else:
                raise


def _stand_in(parameter: Any) -> list[str]:
    return [parameter.opts[0], "1"] if parameter.param_type_name == "option" else ["1"]
