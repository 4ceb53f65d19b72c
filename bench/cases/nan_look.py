"""What the look for NaN before each save costs: its time over the time between two saves, of ten million parameters.

Training and looks take turns on the trainer's thread, so the look's own time is what the training loses. It is taken
between calls of the product's own compiled call, as a save takes it, so that caches are as cold as they are then: the
weights and Adam's slots (120 MB) were written by the call before. `checkpoint_stall.py` holds the look too, as its time
is part of the stall.
"""

import argparse
import time

import numpy as np
from rig import ms, percentile, report, settings_of

from millrace.app.service.model_setup import build_learner

MODEL = {"model.build": "../models/ten_million.py:build_model", "training.batch_size": 64}
SETTLING = 5
SAVED_EVERY_S = 10.0


def main() -> None:
    """Read the options, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--looks", type=int, default=60)
    given = parser.parse_args()
    learner = build_learner(settings_of("higgs_raw", MODEL).settings)
    rows = learner.rows_of(learner.probe())
    looks, calls = list[float](), list[float]()
    for _ in range(SETTLING + given.looks):
        began = time.perf_counter()
        learner.learn(rows)
        called = time.perf_counter()
        if found := learner.not_finite():
            raise SystemExit(f"the model has learnt NaN: {found}")
        looks.append(time.perf_counter() - called)
        calls.append(called - began)
    took = np.array(looks[SETTLING:])
    report(
        {"nan_look_cost": round(float(took.mean()) / SAVED_EVERY_S, 5)},
        {
            "looks": len(took),
            "look_p50_ms": ms(percentile(took, 50)),
            "look_p99_ms": ms(percentile(took, 99)),
            "call_p50_ms": ms(percentile(np.array(calls[SETTLING:]), 50)),
            "state_bytes": learner.state_bytes,
        },
    )


if __name__ == "__main__":
    main()
