"""`millrace bench`: measures how fast this machine learns your records with your model."""

from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from millrace.app.cli.config_file import ConfigFile, config_file
from millrace.app.cli.options import Json, loaded, print_json
from millrace.app.service.logs import configure
from millrace.app.service.native_log import load_tensorflow
from millrace.app.settings.environment import require_tensorflow_backend

if TYPE_CHECKING:
    from millrace.app.tools.bench.measure import Trial

_SPENT = {
    "compute": "computing",
    "input": "waiting for decoding and preparing",
    "records": "waiting for records",
    "workers": "waiting for the other workers",
    "saving": "copying for a save",
}


def bench(
    file: ConfigFile = None,
    seconds: Annotated[float, typer.Option(min=1.0, max=3600.0, help="How long to measure.")] = 20.0,
    workers: Annotated[
        int | None,
        typer.Option(min=1, max=256, help="How many processes learn the model together; default: scale.workers."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Learn the topic's records at full speed for a while; report the rate, what limits it, and the headroom.

    Leaves nothing behind: checkpoints are thrown away, no offset is committed, no dead letter is sent. Other programs
    on this machine slow it down. With several workers the whole group runs on this machine, on the same cores.
    Example: millrace bench -c clicks.yaml
    """
    require_tensorflow_backend()
    found = loaded(file)
    several = found.settings.scale.workers if workers is None else workers
    whom = "" if several == 1 else f" with {several} workers"
    typer.echo(f"Building and proving the model, then learning{whom} for {seconds:g} s.", err=True)
    if several == 1:
        configure(name=found.settings.name, form=found.settings.logs.format, level="warning")
        load_tensorflow()
        from millrace.app.tools.bench.trial import bench as run_trial  # noqa: PLC0415 - loads TensorFlow

        trial = run_trial(found, seconds)
    else:
        from millrace.app.tools.bench.group_trial import bench_group  # noqa: PLC0415 - one process needs none of it

        config = config_file(file, say=lambda _: None)  # the file was named before
        trial = bench_group(config, found.settings, several, seconds)
    if as_json:
        print_json({name: value for name, value in asdict(trial).items() if value is not None})
        return
    typer.echo("\n".join(_lines(trial)))
    if trial.seconds < seconds:
        why = "Calls take long" if trial.calls_too_slow else "The topic held no more"
        typer.echo(f"  {why}: measured for {trial.seconds:.1f} s only.")


def _lines(trial: "Trial") -> Iterator[str]:
    together = "" if trial.workers == 1 else f", by {trial.workers} workers"
    yield f"{trial.name}: {trial.records:,} records in {trial.seconds:.1f} s{together}"
    yield f"  learnt    {_rate(trial.records_per_s)}"
    yield f"  arriving  {_arriving(trial)}"
    shares = sorted(trial.waiting.items(), key=lambda item: -item[1])
    spent = ", ".join(f"{share:.0%} {_SPENT[what]}" for what, share in shares if share >= 0.005)
    yield f"  bound by  {trial.bound_by or 'nothing yet'}: {spent}"
    yield f"  {trial.advice}"


def _arriving(trial: "Trial") -> str:
    if trial.arriving_per_s is None:
        return "not known: it was over too soon"
    if trial.headroom is None:
        return "nothing came meanwhile"
    if trial.headroom < 1:
        return f"{_rate(trial.arriving_per_s)}: more than is learnt, so the model falls behind"
    times = f"{trial.headroom:.1f}" if trial.headroom < 100 else f"{trial.headroom:,.0f}"
    return f"{_rate(trial.arriving_per_s)}: {times} times as many could come"


def _rate(per_s: float) -> str:
    return f"{per_s:,.0f} records/s" if per_s >= 10 else f"{per_s:.1f} records/s"
