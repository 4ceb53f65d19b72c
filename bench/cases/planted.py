"""Faults that are planted in the fields of records, and a week without any: what the inputs name.

The world is that of `tests/training/trainer/inputs/world.py`: records of 200 fields of sixteen kinds, a thousand a
second, by day and night, with weekends and a holiday, an hour of it in a minute of event time. For each seed a minute
and a half is learnt; then each of twenty kinds of faults is planted at a moment that is drawn. It is named if the first
mark within ten seconds of records has its field in front; the details have the percentiles 1, 5, 50, 95 and 99 of how
much too late its beginning is said, in seconds. In the weeks nothing is to be named. No model, no Kafka; two cores.
"""

import argparse
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from typing import Any

import numpy as np
from rig import report

from tests.training.trainer.inputs.world import CALL, FAULTS, RATE, WEEK_S, Watch, World, other_of, planted

WARM_S, WITHIN_S, WINDOW_S = 90.0, 10.0, 4.0


def named(fields: int, seed: int) -> tuple[dict[str, bool], list[str], list[float]]:
    """Return whether each kind of fault is named first, what was named before, and how late it is said to begin."""
    random, world = np.random.default_rng([seed, 2]), World(fields, seed)
    watch = Watch(world)
    watch.go(WARM_S + random.random() * WINDOW_S)
    false = [text for _, _, text, _ in watch.marks]
    state, at_s, offset = watch.inputs.snapshot(), world.at_s, world.offset
    found, off_s = {}, []
    for kind, (of, _) in FAULTS.items():
        world.at_s, world.offset = at_s, offset
        again = Watch(world)
        again.inputs.restore(state)
        # Another moment of the open window for each kind.
        again.go(CALL / RATE * int(random.integers(round(WINDOW_S * RATE / CALL))))
        fields_of_kind = world.of_kind(of)
        name = fields_of_kind[int(random.integers(len(fields_of_kind)))]
        false += [text for _, _, text, _ in again.marks]
        again.marks.clear()
        began_s = world.at_s
        again.go(WITHIN_S, planted(kind, name, world, random))
        right = {name, other_of(world, name)} if kind.startswith("swapped") else {name}
        found[kind] = bool(again.marks) and again.marks[0][1] in right
        changed = again.inputs.view.changed if again.inputs.view else {}
        known = [changed[one] for _, one, _, _ in again.marks if one in right & changed.keys()]
        off_s += [one.since_ms / 1000 - began_s for one in known]
    return found, false, off_s


def week(fields: int, seed: int) -> list[str]:
    """Return what is named in a week without a fault."""
    watch = Watch(World(fields, seed, at_s=0.0))
    watch.go(WEEK_S)
    return [f"day {at_s * 7 / WEEK_S:.2f}: {text}" for at_s, _, text, _ in watch.marks]


def main() -> None:
    """Read the options, plant, watch, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fields", type=int, default=200)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--weeks", type=int, default=1)
    parser.add_argument("--processes", type=int, default=2)
    given = parser.parse_args()
    with ProcessPoolExecutor(given.processes) as pool:
        weeks = pool.map(partial(week, given.fields), range(100, 100 + given.weeks))
        runs: Sequence[tuple[dict[str, bool], list[str], list[float]]] = [
            *pool.map(partial(named, given.fields), range(given.seeds))
        ]
        false = [text for one in weeks for text in one]
    by_kind = {kind: sum(found[kind] for found, _, _ in runs) for kind in FAULTS}
    false += [text for _, some, _ in runs for text in some]
    details: dict[str, Any] = {
        "fields": given.fields,
        "seeds": given.seeds,
        "named_by_kind": by_kind,
        "since_off_s": np.percentile([one for _, _, some in runs for one in some], [1, 5, 50, 95, 99])
        .round(3)
        .tolist(),
        "weeks": given.weeks,
        "false": false[:20],
    }
    report(
        {"faults_named": sum(by_kind.values()) / max(1, given.seeds * len(FAULTS)), "false_names": len(false)}, details
    )


if __name__ == "__main__":
    main()
