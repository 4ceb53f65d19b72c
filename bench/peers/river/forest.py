"""River's adaptive random forest on a topic, test-then-train: each record is guessed, then learnt, in order.

Ten trees, everything at River's defaults. The topic is read whole before, because Kafka takes a reader that is busy for
minutes for a dead one. Prints one line of JSON: the share that it guessed right, overall and of each `--window`
records, and the CPU that it took, without the reading.
"""

import argparse
import json
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "measuring"))

from plain_client import batches
from river import forest


def main() -> None:
    """Guess and learn record after record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--records", type=int, required=True)
    parser.add_argument("--window", type=int, required=True)
    given = parser.parse_args()
    values: list[bytes] = []
    for some in batches(given.bootstrap, given.topic, given.window):
        values += some
        if len(values) >= given.records:
            break
    if len(values) != given.records:
        raise SystemExit(f"{given.topic} holds {len(values)} records, not {given.records}")
    model = forest.ARFClassifier(n_models=10, seed=1)
    right: list[bool] = []
    began = time.process_time()
    for value in values:
        record = json.loads(value)
        x, y = dict(enumerate(record["x"])), record["y"]
        right.append(model.predict_one(x) == y)
        model.learn_one(x, y)
    cpu_s = time.process_time() - began
    curve = [
        sum(right[first : first + given.window]) / len(right[first : first + given.window])
        for first in range(0, len(right), given.window)
    ]
    print(
        json.dumps({"accuracy": sum(right) / len(right), "curve": curve, "cpu_us_per_record": cpu_s / len(right) * 1e6})
    )


if __name__ == "__main__":
    main()
