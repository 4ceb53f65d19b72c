"""Writes one of River's drifting streams to a file, a JSON object a line: `{"x":[…],"y":0}`.

The concept changes abruptly every `--concept` records; a new concept is the same generator with another rule:

- agrawal: loan applications by Agrawal's classification functions 0, 1, 2, …
- random_rbf: 10 features, 4 classes, 40 centroids; each concept has centroids of its own
- led: the ten digits on a display of seven segments, of which 10 % are inverted, among 17 irrelevant features; from the
  second concept on all seven segments change places with irrelevant features

The same arguments give the same records. Features are numbers throughout, in the generator's order.
"""

import argparse
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from river.datasets import base, synth

Record = tuple[Mapping[Any, float], int]
STREAMS: Mapping[str, Callable[[int], base.SyntheticDataset]] = {
    "agrawal": lambda concept: synth.Agrawal(classification_function=concept, seed=100 + concept),
    "random_rbf": lambda concept: synth.RandomRBF(
        seed_model=concept, seed_sample=100 + concept, n_classes=4, n_features=10, n_centroids=40
    ),
    "led": lambda concept: synth.LEDDrift(
        seed=100 + concept, noise_percentage=0.1, irrelevant_features=True, n_drift_features=7 if concept else 0
    ),
}


def records(stream: str, count: int, concept: int) -> Iterator[Record]:
    """So many records, with another concept after every `concept` of them."""
    for number, first in enumerate(range(0, count, concept)):
        yield from STREAMS[stream](number).take(min(concept, count - first))


def main() -> None:
    """Read the options, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stream", choices=list(STREAMS), required=True)
    parser.add_argument("--records", type=int, required=True)
    parser.add_argument("--concept", type=int, required=True)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    with given.out.open("w") as file:
        for x, y in records(given.stream, given.records, given.concept):
            file.write(json.dumps({"x": list(x.values()), "y": int(y)}, separators=(",", ":")) + "\n")
    print(json.dumps({"stream": given.stream, "records": given.records}))


if __name__ == "__main__":
    main()
