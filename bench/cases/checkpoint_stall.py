"""How long a checkpoint of ten million parameters with Adam (120 MB) holds the learning up, and what it costs in all.

The stall of a save is how long the trainer's thread learns nothing because of it: while it copies the state. Nothing of
the copy is left for later, yet the calls that follow share the machine with the thread that hashes and syncs. So the
cost of a save is the stall and what all calls until the next save took beyond quiet ones; quiet are the calls of the
last third of the time between two saves. `next_call_p50_ms` is what the first call after a save took beyond them,
and `noise_p99_ms` by how much quiet calls themselves exceed their median.

Saves are asked for one by one. One batch of 64 rows a call, so that a call is short beside a save.
"""

import argparse
import time

import numpy as np
from rig import Calls, Floats, hosted, ms, percentile, place, report

from millrace.training.commands import Save

MODEL = {"model.build": "../models/ten_million.py:build_model"}
SMALL = {"training.batch_size": 64, "training.batches_per_call": 1, "checkpoints.every": "1h"}
SETTLING_CALLS = 10
SAVED_WITHIN_S = 60.0
PUBLISHED_EVERY_S = 10.0


def costs(calls: Calls, saves: Floats) -> tuple[Floats, Floats, Floats]:
    """In seconds by save, what the first call after it took more, and the whole cost; and the noise of quiet calls."""
    ends = np.append(saves[1:, 0] - saves[1:, 1], calls.at[-1])
    beginnings = calls.at - calls.took_s
    after = [(beginnings >= at) & (calls.at <= end) for (at, _), end in zip(saves, ends, strict=True)]
    late = [
        chosen & (beginnings >= end - (end - at) / 3) for chosen, (at, _), end in zip(after, saves, ends, strict=True)
    ]
    quiet = calls.took_s[np.any(late, axis=0)]
    usual, mean = np.median(quiet), quiet.mean()
    following = [calls.took_s[chosen][0] - usual for chosen in after]
    cost = [held + (calls.took_s[chosen] - mean).sum() for chosen, (_, held) in zip(after, saves, strict=True)]
    return np.array(following), np.array(cost), quiet - usual


def main() -> None:
    """Read the options, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--topic", required=True, help="stored raw records")
    parser.add_argument("--saves", type=int, default=15)
    parser.add_argument("--every-s", type=float, default=4.0)
    given = parser.parse_args()
    with hosted("higgs_raw", {**place(given.bootstrap, given.topic), **MODEL, **SMALL}) as host:
        host.wait_for_calls(SETTLING_CALLS)
        writing_s = []
        for _ in range(given.saves):
            began = time.monotonic()
            host.service.commands.send(Save()).result(SAVED_WITHIN_S)
            writing_s.append(time.monotonic() - began)
            host.run_for(max(given.every_s - writing_s[-1], given.every_s / 2))
        calls, saves = host.notes.calls(), host.notes.saves()[: given.saves]
    following, cost, noise = costs(calls, saves)
    stall = saves[:, 1]
    report(
        {"stall_p99_ms": ms(percentile(stall, 99))},
        {
            "saves": len(saves),
            "stall_p50_ms": ms(percentile(stall, 50)),
            "next_call_p50_ms": ms(percentile(following, 50)),
            "noise_p99_ms": ms(percentile(noise, 99)),
            "quiet_call_ms": ms(float(np.median(calls.took_s))),
            "cost_ms": ms(float(np.mean(cost))),
            "cost_share": round(float(np.mean(cost)) / PUBLISHED_EVERY_S, 4),
            "durable_p99_ms": ms(percentile(np.array(writing_s), 99)),
        },
    )


if __name__ == "__main__":
    main()
