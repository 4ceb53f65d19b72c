"""`millrace prove`: kills a trainer of your model again and again, and compares what it has learnt."""

import time
from collections.abc import Iterator
from typing import Annotated

import typer

from millrace.app.cli.config_file import ConfigFile
from millrace.app.cli.options import Json, loaded, print_json
from millrace.app.settings.environment import require_tensorflow_backend
from millrace.app.tools.prove.campaign import Figures
from millrace.app.tools.prove.kills import GroupKill, KillMethod
from millrace.app.tools.prove.prove import ProofResult
from millrace.app.tools.prove.prove import prove as run_campaign
from millrace.training.model.setup.model_file import require_file


def prove(
    file: ConfigFile = None,
    kills: Annotated[int, typer.Option(min=1, max=10_000, help="How often to kill it.")] = 20,
    seed: Annotated[
        int | None, typer.Option(min=0, help="The seed of kills and records; default: another one each time.")
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(min=1, max=256, help="How many processes learn the model together; default: scale.workers."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Kill a trainer of your model again and again while it learns; show that no record is lost or learnt twice.

    Uses the local broker and records generated from your schema; Kafka and the checkpoints of the config are not
    touched, and nothing is left behind. A kill takes about as long as a start. With several workers the whole group
    runs on this machine, and the chief, others, or two at once are killed. Example:
    millrace prove -c clicks.yaml --kills 20
    """
    require_tensorflow_backend()
    found = loaded(file)
    require_file(found.settings.model.build.file)
    drawn = int(time.time()) if seed is None else seed
    several = found.settings.scale.workers if workers is None else workers
    whom = found.settings.name if several == 1 else f"the {several} workers of {found.settings.name}"
    typer.echo(f"Starting a broker, then killing {whom} {kills} times (seed {drawn}).", err=True)

    def report(fault: KillMethod | GroupKill, figures: Figures) -> None:
        typer.echo(f"kill {figures.kills} of {max(kills, figures.kills)}: {fault}", err=True)

    proof = run_campaign(found.settings, kills=kills, seed=drawn, on_strike=report, workers=several)
    if as_json:
        print_json(_facts(proof))
    else:
        typer.echo("\n".join(_lines(proof)))
    raise typer.Exit(int(not proof.kept))


def _facts(proof: ProofResult) -> dict[str, object]:
    set_aside = {str(reason): count for reason, count in proof.set_aside.items()}
    return {"name": proof.name, **proof.figures.summary(), "set_aside": set_aside}


def _lines(proof: ProofResult) -> Iterator[str]:
    summary = proof.figures.summary()
    kills, in_save = summary["kills"], summary["kills_in_save"]
    yield f"{proof.name}: {kills} kills, {in_save} of them in a save; {summary['records']:,} records"
    yield f"  lost {summary['lost']}, learnt twice {summary['learnt_twice']}"
    wrong = summary["valid_rejected"]
    yield (
        f"  {summary['restored_newest']} restarts resumed from the newest durable checkpoint"
        + (f"; {wrong} DID NOT, or a checkpoint was damaged" if wrong else ", every one of them")
    )
    if waiting := summary["waiting"]:
        yield f"  {waiting:,} records at the end wait for a whole batch (training.partial_batches: wait)"
    listed = ", ".join(f"{count} {reason}" for reason, count in proof.set_aside.items())
    yield f"  set aside {sum(proof.set_aside.values())}{f': {listed}' if listed else ''}"
    rto, replay = summary["rto_s"], summary["replay"]
    yield f"  restart to the first new call {rto['p50']:.1f} s (at most {rto['max']:.1f} s)"
    if replay["n"]:
        yield f"  read again after a kill {replay['p50']:,.0f} records (at most {replay['max']:,.0f})"
    if summary["labelled"]:
        yield f"  {summary['labelled']:,} records have a label, as many as in a plain join of the topics"
    if summary["joined_otherwise"]:
        yield f"  {summary['joined_otherwise']:,} records have ANOTHER outcome than in a plain join of the topics"
    if summary["unbalanced"]:
        yield f"  {summary['unbalanced']} partitions whose account DOES NOT add up"
    if summary["replay_beyond_bound"]:
        yield f"  {summary['replay_beyond_bound']} kills after which MORE was read again than lies between two saves"
