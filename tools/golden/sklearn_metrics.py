"""Metrics of scikit-learn on random scores and labels.

Written with scikit-learn 1.9.1 for ``tests/training/test_class_counts.py``::

    python -m tools.golden.sklearn_metrics

Scores are multiples of 1/4, so that some are equal. One class never occurs in the labels, and one
never in the predictions.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from sklearn import metrics

TARGET = Path(__file__).resolve().parents[2] / "tests" / "golden" / "sklearn" / "metrics.npz"


def main() -> None:
    random = np.random.default_rng(0)
    found: dict[str, np.ndarray] = {}
    for classes in (1, 2, 7):
        scores = random.integers(-8, 9, (60, classes)) / 4
        labels = random.integers(0, max(2, classes - 1), 60)
        if classes == 7:
            scores[:, 2] = -9
        predicted = (scores[:, 0] > 0).astype(int) if classes == 1 else scores.argmax(axis=1)
        average = {"average": "binary" if classes == 1 else "macro", "zero_division": 0}
        found[f"{classes}/scores"], found[f"{classes}/labels"] = scores, labels
        for name, function in (
            ("precision", metrics.precision_score),
            ("recall", metrics.recall_score),
            ("f1", metrics.f1_score),
            ("iou", metrics.jaccard_score),
        ):
            found[f"{classes}/{name}"] = np.array(function(labels, predicted, **average))
        if classes < 3:
            order = scores[:, -1] - (scores[:, 0] if classes == 2 else 0)
            found[f"{classes}/auc"] = np.array(metrics.roc_auc_score(labels, order))
    TARGET.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(TARGET, **found)


if __name__ == "__main__":
    main()
