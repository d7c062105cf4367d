"""Write ``models/digits.npz``: the scikit-learn copy of the UCI handwritten digits.

The set has 1,797 images of 8x8 pixels with 17 grey levels (0 to 16). They are divided by 16, so
that every pixel is an exact multiple of 1/16 in [0, 1], given the shape ``[n, 1, 8, 8]``, and
split into 1,437 training and 360 test images with the same proportion of every class.

The file has four arrays: ``x_train`` and ``x_test`` (float32), ``y_train`` and ``y_test`` (int64).

The shipped file was made with scikit-learn 1.9.1.

Examples:
    From the root of the repository::

        python -m tools.make_digits --out models/digits.npz
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

__all__ = ["SPLIT_SEED", "TEST_IMAGES", "digits", "main"]

SPLIT_SEED = 2024
TEST_IMAGES = 360


def digits(seed: int = SPLIT_SEED) -> dict[str, np.ndarray]:
    """Return the split data set.

    Args:
        seed: seed of the stratified split.

    Returns:
        The four arrays by name.
    """
    data = load_digits()
    x = (data.images[:, None] / 16.0).astype(np.float32)
    y = data.target.astype(np.int64)
    x_train, x_test, y_train, y_test = train_test_split(
        x, y, test_size=TEST_IMAGES, stratify=y, random_state=seed
    )
    return {"x_train": x_train, "y_train": y_train, "x_test": x_test, "y_test": y_test}


def main(argv: list[str] | None = None) -> int:
    """Write the data set and print what was written."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.make_digits",
        description="Make the digits data set from scikit-learn's copy.",
        epilog="example: python -m tools.make_digits --out models/digits.npz",
    )
    parser.add_argument("--out", type=Path, default=Path("models/digits.npz"))
    arguments = parser.parse_args(argv)

    arrays = digits()
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(arguments.out, **arrays)
    for name, array in arrays.items():
        print(f"{name:8} {array.dtype} {list(array.shape)}")
    print(f"{arguments.out}: {arguments.out.stat().st_size:,} bytes")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
