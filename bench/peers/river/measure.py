"""River: logistic regression behind a StandardScaler, one record at a time.

River learns from dicts of features and brings no Kafka client, so a plain consumer loop feeds it: `json.loads`,
`learn_one`. Only the judged records are guessed first, by `predict_one`: in the timed part it learns and does nothing
else.
"""

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "measuring"))

from plain_client import batches
from river import linear_model, preprocessing
from stopwatch import BATCH, Stopwatch, options

NOTE = "a linear model with SGD: River has no MLP of this kind; its StandardScaler comes on top"


def main() -> None:
    """Learn record after record."""
    given = options(__doc__)
    clock = Stopwatch(given)
    model = preprocessing.StandardScaler() | linear_model.LogisticRegression()
    for values in batches(given.bootstrap, given.topic, BATCH):
        right = 0
        for value in values:
            record = json.loads(value)
            x, y = dict(enumerate(record["x"])), bool(record["y"])
            if clock.judging:
                right += model.predict_one(x) == y
            model.learn_one(x, y)
        if not clock.learnt(len(values), right):
            break
    print(json.dumps({**clock.result(), "note": NOTE}))


if __name__ == "__main__":
    main()
