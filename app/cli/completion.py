"""`millrace completion`: the script by which a shell completes verbs and options."""

from enum import StrEnum
from typing import Annotated

import typer
from typer.completion import shell_complete

from millrace.app.cli.command_list import application


class Shell(StrEnum):
    """A shell that typer knows how to complete for."""

    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


def completion(shell: Annotated[Shell, typer.Argument(help="The shell that you use.")]) -> None:
    """Print the script that lets a shell complete verbs and options.

    For bash, add `eval "$(millrace completion bash)"` to ~/.bashrc; for zsh, the same with zsh to ~/.zshrc, after
    compinit; for fish, write it to ~/.config/fish/completions/millrace.fish.
    Example: millrace completion bash > millrace.bash
    """
    command = typer.main.get_command(application)
    raise typer.Exit(shell_complete(command, {}, "millrace", "_MILLRACE_COMPLETE", f"source_{shell.value}"))
