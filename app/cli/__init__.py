"""The command line. Importing it loads typer and nothing else that is slow: each command imports what it needs."""

from millrace.app.cli.command_list import main

__all__ = ["main"]
