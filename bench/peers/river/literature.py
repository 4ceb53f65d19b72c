"""Writes a stream of the literature to a file, a JSON object a line: named features, and the label `y`.

Abrupt: three concepts of a third of the records each. Gradual: over a tenth of them around each change the next
concept's share grows from none to all. The same stream, seed and count give the same records.

- agr, agr_g: Agrawal's loan applications, abrupt and gradual, by functions 0 to 6 (7 to 9 know nearly one class); led:
  the digits of a display of seven segments, of which 10 % are inverted, among 17 irrelevant ones; hyper: a hyperplane
  that turns; rbf_d: moving centroids; rbf_a: other centroids; tree_g: random trees, gradual; sine, sea, mixed: the
  usual three, abrupt, sine with two features of noise
- chess: a transient chessboard of 8 × 8 fields, each of one of eight classes: records come from four fields for a
  while, then from the next four, after all of them from the whole board, and another board begins
- bananas, segments, phishing: data sets, in the order in which River has them
"""

import argparse
import json
import math
import random
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from river import datasets
from river.datasets import base, synth

Record = tuple[Mapping[Any, Any], Any]
SETS = {"bananas": datasets.Bananas, "segments": datasets.ImageSegments, "phishing": datasets.Phishing}
GRADUAL = ("agr_g", "tree_g")
_SIDE, _A_FIELD = 8, 100
"""The fields of a board's side, and the records of a field while it is shown."""


def concept(stream: str, number: int, seed: int) -> base.SyntheticDataset:
    """Return what generates one concept of a stream."""
    own = 1000 * seed + number
    match stream:
        case "agr" | "agr_g":
            return synth.Agrawal(classification_function=(seed * 3 + number * 4) % 7, seed=own)
        case "led":
            return synth.LEDDrift(
                seed=own, noise_percentage=0.1, irrelevant_features=True, n_drift_features=(0, 3, 7)[number % 3]
            )
        case "rbf_a":
            return synth.RandomRBF(seed_model=own, seed_sample=own, n_classes=4, n_features=10, n_centroids=30)
        case "tree_g":
            return synth.RandomTree(
                seed_tree=own,
                seed_sample=own,
                n_classes=3,
                n_num_features=5,
                n_cat_features=3,
                n_categories_per_feature=4,
            )
        case "sine":
            return synth.Sine(classification_function=(seed + number) % 4, seed=own, has_noise=True)
        case "sea":
            return synth.SEA(variant=(seed + number) % 4, noise=0.1, seed=own)
        case "mixed":
            return synth.Mixed(classification_function=(seed + number) % 2, seed=own)
    raise SystemExit(f"no stream is called {stream}")


def chessboard(seed: int) -> Iterator[Record]:
    """Yield the transient chessboard without end."""
    dice = random.Random(seed)
    while True:
        fields = [(column, row) for column in range(_SIDE) for row in range(_SIDE)]
        label = {field: dice.randrange(_SIDE) for field in fields}
        dice.shuffle(fields)
        for shown in (*(fields[first : first + 4] for first in range(0, len(fields), 4)), fields):
            for _ in range(_A_FIELD * len(shown) // (2 if shown is fields else 1)):
                column, row = dice.choice(shown)
                yield {"x": column + dice.random(), "y": row + dice.random()}, label[column, row]


def records(stream: str, count: int, seed: int) -> Iterator[Record]:
    """Yield so many records of a stream, or as many as its data set has."""
    if stream in SETS:
        yield from islice(SETS[stream](), count)
    elif stream == "chess":
        yield from islice(chessboard(seed), count)
    elif stream == "hyper":
        yield from synth.Hyperplane(seed=seed, n_features=10, n_drift_features=10, mag_change=0.001).take(count)
    elif stream == "rbf_d":
        moving = synth.RandomRBFDrift(
            seed_model=seed,
            seed_sample=seed,
            n_classes=5,
            n_features=10,
            n_centroids=20,
            change_speed=0.0005,
            n_drift_centroids=20,
        )
        yield from moving.take(count)
    else:
        dice, each = random.Random(seed), count // 3
        concepts = [iter(concept(stream, number, seed)) for number in range(3)]
        width = count / 40 if stream in GRADUAL else 0.0
        for index in range(count):
            # The share of the next concept around a change, as a sigmoid; a step where the change is abrupt.
            number = min(index // each, 2)
            if width:
                change = round(index / each)
                share = 1 / (1 + math.exp(-(index - change * each) / width))
                if 0 < change < 3:
                    number = change if dice.random() < share else change - 1
            yield next(concepts[number])


def main() -> None:
    """Read the options, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stream", required=True)
    parser.add_argument("--records", type=int, required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    written = 0
    with given.out.open("w") as file:
        for features, label in records(given.stream, given.records, given.seed):
            named = {f"f_{name}": value for name, value in features.items()}
            file.write(json.dumps({**named, "y": label}, separators=(",", ":")) + "\n")
            written += 1
    print(json.dumps({"stream": given.stream, "records": written}))


if __name__ == "__main__":
    main()
