"""`millrace rewind`: goes back to a checkpoint, skipping offsets on the way if asked to."""

from collections.abc import Iterator, Mapping
from typing import Annotated, Any

import typer

from millrace.app.cli.options import Json, ServiceOptions, grouped, print_json
from millrace.app.printable import printable
from millrace.app.tools.rewind import TypedRewind, rewind_or_send, send_rewind
from millrace.consumers.errors import DataLossError


@grouped
def rewind(
    to: Annotated[
        str,
        typer.Option(
            help="The checkpoint to resume from: its number; best (by the watched metric) or latest; or a time "
            "(2026-11-21T03:00:00Z), an age (-2h) or an offset (clicks:0:1200), for the newest checkpoint before "
            "it."
        ),
    ],
    skip: Annotated[
        list[str] | None,
        typer.Option(help="Offsets to skip, both ends included, as in clicks:0:100-200. May be repeated."),
    ] = None,
    unskip: Annotated[
        list[str] | None,
        typer.Option(help="An earlier skip that no longer applies, as in rewind-17. May be repeated."),
    ] = None,
    reason: Annotated[str | None, typer.Option(help="Why; kept with the checkpoint.")] = None,
    *,
    service: ServiceOptions,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would be done.")] = False,
    as_json: Json = False,
) -> None:
    """Go back to a checkpoint and resume from there; the records after it are read again.

    A running trainer gets the command (at api.listen, or at --url); without one it waits for the next start. Exits 4 if
    Kafka no longer has the records that would have to be read again. Example:
    millrace rewind -c clicks.yaml --to 37 --skip clicks:0:100-200 --reason "a broken producer"
    """
    note = None if reason is None else " ".join(reason.split())
    typed = TypedRewind(to=to, skip=skip or (), unskip=unskip or (), reason=note, dry_run=dry_run)
    if service.url is not None:
        answer = send_rewind(service.client(), typed)
    else:
        answer = rewind_or_send(service.settings(), typed, service.token(), service.tls)
    if as_json:
        print_json(answer)
    elif dry_run:
        typer.echo("\n".join(map(printable, _plan(answer))))
    else:
        number, target = answer["checkpoint"]["number"], answer["checkpoint"]["parent"]
        typer.echo(f"checkpoint {number} is checkpoint {target} again: learning resumes from it")
    if dry_run and answer.get("gone"):
        raise DataLossError(answer["advice"])


def _plan(plan: Mapping[str, Any]) -> Iterator[str]:
    learnt_to = f", has learnt up to {plan['learnt_to']}" if "learnt_to" in plan else ""
    yield f"back to checkpoint {plan['to']}: step {plan['step']:,}, written {plan['created_at']}{learnt_to}"
    if "why" in plan:
        yield f"it is {plan['why']}"
    for partition, facts in plan["partitions"].items():
        skipped = f", {facts['skipped']:,} skipped" if facts["skipped"] else ""
        gone = f", {facts['gone']:,} gone from Kafka" if facts.get("gone") else ""
        way = f"{facts['position']} -> {facts['back_to']}"
        yield f"{partition}  {way}: {facts['replayed']:,} offsets again{skipped}{gone}"
    for skip in plan.get("skips", []):
        yield f"{skip['order']} still applies: {', '.join(skip['ranges'])} skipped ({skip['reason']})"
    takes = f" in about {_minutes(plan['takes_s'])}" if "takes_s" in plan else ""
    unasked = "" if "gone" in plan else "; Kafka does not answer, so whether it still has them is not known"
    yield (
        f"{plan['replayed']:,} offsets would be read again{takes} and {plan['skipped']:,} skipped; nothing was "
        f"done{unasked}"
    )


def _minutes(seconds: float) -> str:
    return f"{seconds / 60:,.0f} min" if seconds >= 90 else f"{seconds:,.0f} s"
