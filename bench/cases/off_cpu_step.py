"""A step that waits 10 ms off the CPU, as on a GPU, with all of ingest running: what of the ideal rate is reached.

Ideal is what the step takes alone: the product's own compiled call on the model of `models/waiting.py`, on a block in
memory, with nothing else in this process, before the service starts and after it has ended: the mean of both, as
machines drift. That is 10 ms, what the step computes, and what the timer is late. Reached is the rate of the service on
a stored topic of JSON. What it lacks is what ingest and the trainer's work between two calls cost the model.
"""

import argparse
import statistics
import time

from rig import hosted, place, report, settings_of

from millrace.app.service.model_setup import build_learner
from millrace.pipelines.stream.blocks import Rows

MODEL = {"model.build": "../models/waiting.py:build_model"}
SETTLING_CALLS = 15
STEPS = 16
"""In a call: training.batches_per_call, as it is unless told."""


def alone_s(seconds: float) -> float:
    """Seconds a step, by itself; the median of calls of 16 steps."""
    learner = build_learner(settings_of("higgs_json", MODEL).settings)
    one = learner.rows_of(learner.probe())
    rows = _repeated(one, STEPS)
    took: list[float] = []
    until = time.monotonic() + seconds
    while time.monotonic() < until or len(took) <= SETTLING_CALLS:
        began = time.perf_counter()
        learner.learn(rows)
        took.append((time.perf_counter() - began) / STEPS)
    return statistics.median(took[SETTLING_CALLS:])


def _repeated(rows: Rows, times: int) -> Rows:
    import tensorflow as tf

    repeated: Rows = tf.nest.map_structure(lambda column: tf.repeat(column, times, axis=0), rows)
    return repeated


def main() -> None:
    """Read the options, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--topic", required=True, help="stored records as JSON, about 100,000 for each second")
    parser.add_argument("--seconds", type=float, default=15.0)
    given = parser.parse_args()
    batch = settings_of("higgs_json", MODEL).settings.training.numbers.batch_size
    before_s = alone_s(given.seconds / 3)
    with hosted("higgs_json", {**place(given.bootstrap, given.topic), **MODEL}) as host:
        host.wait_for_calls(SETTLING_CALLS)
        began, waited_s = time.monotonic(), host.notes.waited_s
        host.run_for(given.seconds)
        calls, waited_s = host.notes.calls(since=began), host.notes.waited_s - waited_s
        left = host.lag()
    if not left:
        raise SystemExit(f"{given.topic} does not hold enough for {given.seconds:g} s")
    after_s = alone_s(given.seconds / 3)
    step_s = (before_s + after_s) / 2
    reached, ideal = calls.rate(), batch / step_s
    details = {
        "step_alone_ms": round(step_s * 1000, 3),
        "step_alone_before_ms": round(before_s * 1000, 3),
        "step_alone_after_ms": round(after_s * 1000, 3),
        "own_ms": round(step_s * 1000 - 10, 3),
        "records_per_s": round(reached),
        "ideal_records_per_s": round(ideal),
        "call_ms": {"mean": round(float(calls.took_s.mean()) * 1000, 2), "ideal": round(step_s * 1000 * STEPS, 2)},
        "waited_share": round(waited_s / given.seconds, 4),
    }
    report({"of_ideal": round(reached / ideal, 4)}, details)


if __name__ == "__main__":
    main()
