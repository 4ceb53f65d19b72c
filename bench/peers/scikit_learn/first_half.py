"""scikit-learn's usual models, fitted on a topic's first half, scored on the second: `first_half.py FILE METRIC`.

The file is NumPy's: `x`, a column a feature or a text a row, and `y`.
"""

import json
import sys

import numpy as np
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.metrics import accuracy_score, mean_absolute_error, roc_auc_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler


def main() -> None:
    """Print a score for each model."""
    path, metric = sys.argv[1:]
    with np.load(path) as file:
        x, y = file["x"], file["y"]
    half = len(x) // 2
    if metric == "mae":
        models = {"ridge": make_pipeline(StandardScaler(), Ridge()), "trees": HistGradientBoostingRegressor()}
        scores = {
            name: mean_absolute_error(y[half:], model.fit(x[:half], y[:half]).predict(x[half:]))
            for name, model in models.items()
        }
        scores["median"] = float(np.abs(y[half:] - np.median(y[:half])).mean())
    else:
        first = CountVectorizer() if x.dtype.kind == "U" else StandardScaler()
        model = make_pipeline(first, LogisticRegression(max_iter=1000)).fit(x[:half], y[:half])
        if metric == "auc":
            scores = {"logistic": roc_auc_score(y[half:], model.predict_proba(x[half:])[:, 1])}
        else:
            scores = {"logistic": accuracy_score(y[half:], model.predict(x[half:]))}
    print(json.dumps(scores))


if __name__ == "__main__":
    main()
