"""`millrace rewind`: the one verb for going back."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer


def rewind(
    file: Annotated[Path, typer.Option("--config", "-c", help="The config file.")],
    to: Annotated[int, typer.Option(min=0, help="The number of the checkpoint to go on from.")],
    skip: Annotated[
        list[str] | None,
        typer.Option(help="Offsets to pass over, both ends included, as in clicks:0:100-200. May be repeated."),
    ] = None,
    reason: Annotated[str | None, typer.Option(help="Why; it is kept with the checkpoint.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be done.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,
) -> None:
    """Go back to a checkpoint and on from there; what came after it is read again.

    A trainer that runs is asked to (at api.listen); without one the order waits for the next start. Example:
    millrace rewind -c clicks.yaml --to 37 --skip clicks:0:100-200 --reason "a broken producer"
    """
    import secrets

    from app.api.skips import parse_skips
    from app.rewinding import order_rewind
    from app.settings import load
    from training.commands import Rewind

    note = None if reason is None else " ".join(reason.split())
    skips = parse_skips(skip or [], order=f"rewind-{secrets.token_hex(6)}", reason=note or "no reason was given")
    command = Rewind(to=to, skips=skips, by="command line", note=note)
    answer = order_rewind(load(file).settings, command, skip or [], dry_run=dry_run)
    if as_json:
        typer.echo(json.dumps(answer, indent=2))
    elif dry_run:
        typer.echo("\n".join(_plan(answer)))
    else:
        number = answer["checkpoint"]["number"]
        typer.echo(f"checkpoint {number} is checkpoint {to} again: this is where learning goes on from")


def _plan(plan: Mapping[str, Any]) -> Iterator[str]:
    for partition, facts in plan["partitions"].items():
        skipped = f", {facts['skipped']:,} skipped" if facts["skipped"] else ""
        yield f"{partition}  {facts['position']} -> {facts['back_to']}: {facts['replayed']:,} offsets again{skipped}"
    yield f"{plan['replayed']:,} offsets would be read again and {plan['skipped']:,} skipped; nothing was done"
