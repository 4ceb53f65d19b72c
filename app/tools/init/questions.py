"""The questions that `millrace init` asks in a terminal. An answer that does not fit is refused, and asked again."""

from collections.abc import Sequence
from dataclasses import replace

import typer

from millrace.app.tools.init.column_roles import ChosenRoles, likely_labels, likely_times, likely_weights
from millrace.app.tools.init.columns import ColumnLook

_NONE = "-"


def asked_parts(seen: Sequence[ColumnLook], wanted: ChosenRoles) -> ChosenRoles:
    """Ask for the label, and for the other roles that the records could fill and no option has given."""
    for column in seen:
        typer.echo(f"  {column.source}: {column.why or column.kind}{', not in every record' * column.absent}")
    given = replace(wanted, label=_choice("Which field is to be predicted?", likely_labels(seen)))
    times = [source for source in likely_times(seen) if source != given.label]
    if given.event_time is None and times:
        given = replace(given, event_time=_choice("Which field is the event time?", times, spare=times[0]))
    weights = [source for source in likely_weights(seen) if source not in {given.label, given.event_time}]
    if given.weight is None and weights:
        given = replace(given, weight=_choice("Which field is the weight of a record?", weights, spare=_NONE))
    return given


def _choice(question: str, able: Sequence[str], spare: str | None = None) -> str | None:
    """Ask for one of the fields; None for none, where there is a `spare` answer. Ctrl-C raises KeyboardInterrupt."""
    optional = spare is not None

    def checked(answer: str) -> str:
        if answer in able or (optional and answer == _NONE):
            return answer
        raise typer.BadParameter(f"{answer!r} is none of {', '.join(able)}")

    try:
        answer = typer.prompt(
            f"{question} {_NONE} for none" if optional else question,
            default=spare or able[0],
            value_proc=checked,
        )
    except typer.Abort:
        raise KeyboardInterrupt from None
    return None if optional and answer == _NONE else str(answer)
