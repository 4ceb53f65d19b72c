"""How long a checkpoint of ten million parameters with Adam (120 MB) holds the learning up, and what it costs in all.

A copy of the state is lazy: TensorFlow keeps the buffers, and the first update after it pays for writing elsewhere. So
the stall of a save is what the trainer's thread spent on the copy, and of the first call after it what that took beyond
a quiet call. The cost of a save adds what all calls until the next save took beyond quiet ones, while the writer hashes
and syncs beside them. Quiet are the calls of the last third of the time between two saves. `noise_p99_ms` is by how
much quiet calls themselves exceed their median: a stall below that cannot be told from nothing.

Saves are asked for one by one. One batch of 64 rows a call, so that a call is short beside a save.
"""

import argparse
import time

import numpy as np
from rig import Calls, Floats, hosted, ms, percentile, place, report

from training.commands import Save

MODEL = {"model.build": "../models/ten_million.py:build_model"}
SMALL = {"training.batch_size": 64, "training.batches_per_call": 1, "checkpoints.every": "1h"}
SETTLING_CALLS = 10
SAVED_WITHIN_S = 60.0
PUBLISHED_EVERY_S = 10.0


def stalls(calls: Calls, saves: Floats) -> tuple[Floats, Floats, Floats]:
    """By save, in seconds: the stall, the whole cost; and by how much quiet calls exceed their median."""
    ends = np.append(saves[1:, 0] - saves[1:, 1], calls.at[-1])
    beginnings = calls.at - calls.took_s
    after = [(beginnings >= at) & (calls.at <= end) for (at, _), end in zip(saves, ends, strict=True)]
    late = [
        chosen & (beginnings >= end - (end - at) / 3) for chosen, (at, _), end in zip(after, saves, ends, strict=True)
    ]
    quiet = calls.took_s[np.any(late, axis=0)]
    usual, mean = np.median(quiet), quiet.mean()
    stall = [held + max(0.0, calls.took_s[chosen][0] - usual) for chosen, (_, held) in zip(after, saves, strict=True)]
    cost = [held + (calls.took_s[chosen] - mean).sum() for chosen, (_, held) in zip(after, saves, strict=True)]
    return np.array(stall), np.array(cost), quiet - usual


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
    stall, cost, noise = stalls(calls, saves)
    report(
        {"stall_p99_ms": ms(percentile(stall, 99))},
        {
            "saves": len(saves),
            "stall_p50_ms": ms(percentile(stall, 50)),
            "copy_p99_ms": ms(percentile(saves[:, 1], 99)),
            "noise_p99_ms": ms(percentile(noise, 99)),
            "quiet_call_ms": ms(float(np.median(calls.took_s))),
            "cost_ms": ms(float(np.mean(cost))),
            "cost_share": round(float(np.mean(cost)) / PUBLISHED_EVERY_S, 4),
            "durable_p99_ms": ms(percentile(np.array(writing_s), 99)),
        },
    )


if __name__ == "__main__":
    main()
