"""`millrace prove`: somebody's own model, killed again and again, and what it has learnt."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from app.tools.prove.campaign import Figures
    from app.tools.prove.kills import KillMethod
    from app.tools.prove.prove import ProofResult


def prove(
    file: Annotated[Path, typer.Option("--config", "-c", help="The config file.")],
    kills: Annotated[int, typer.Option(min=1, max=10_000, help="How often to kill it.")] = 20,
    seed: Annotated[int | None, typer.Option(help="Draws kills and records; another each time by default.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,
) -> None:
    """Kill a trainer of your model again and again while it learns; show that it lost nothing and repeated nothing.

    Uses the local broker and records made up by your schema; Kafka and the checkpoints of the config are not touched,
    and nothing is left behind. A kill takes about as long as a start. Example: millrace prove -c clicks.yaml --kills 20
    """
    import time

    from app.settings import load

    loaded = load(file)
    from app.tools.prove.prove import prove as wage

    drawn = int(time.time()) if seed is None else seed
    typer.echo(f"Starting a broker, then killing {loaded.settings.name} {kills} times (seed {drawn}).", err=True)

    def tell(fault: "KillMethod", figures: "Figures") -> None:
        typer.echo(f"kill {figures.kills} of {max(kills, figures.kills)}: {fault}", err=True)

    proof = wage(loaded.settings, kills=kills, seed=drawn, on_strike=tell)
    typer.echo(json.dumps(_facts(proof), indent=2) if as_json else "\n".join(_lines(proof)))
    raise typer.Exit(int(not proof.kept))


def _facts(proof: "ProofResult") -> dict[str, object]:
    set_aside = {str(reason): count for reason, count in proof.set_aside.items()}
    return {"name": proof.name, **proof.figures.summary(), "set_aside": set_aside}


def _lines(proof: "ProofResult") -> Iterator[str]:
    told = proof.figures.summary()
    yield f"{proof.name}: {told['kills']} kills, {told['kills_in_save']} of them in a save; {told['records']:,} records"
    yield f"  lost {told['lost']}, learnt twice {told['learnt_twice']}"
    wrong = told["valid_rejected"]
    yield (
        f"  {told['restored_newest']} restarts went on from the newest durable checkpoint"
        + (f"; {wrong} DID NOT, or a checkpoint was damaged" if wrong else ", every one of them")
    )
    listed = ", ".join(f"{count} {reason}" for reason, count in proof.set_aside.items())
    yield f"  set aside {sum(proof.set_aside.values())}{f': {listed}' if listed else ''}"
    rto, replay = told["rto_s"], told["replay"]
    yield f"  restart to the first new call {rto['p50']:.1f} s (at most {rto['max']:.1f} s)"
    yield f"  read again after a kill {replay['p50']:,.0f} records (at most {replay['max']:,.0f})"
    if told["unbalanced"]:
        yield f"  {told['unbalanced']} partitions whose account DOES NOT add up"
    if told["replay_beyond_bound"]:
        yield f"  {told['replay_beyond_bound']} kills after which MORE was read again than lies between two saves"
