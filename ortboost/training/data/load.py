"""Load data files: recognise the format, read it, or explain why that is impossible."""

from __future__ import annotations

import os
from pathlib import Path

from ortboost.core.errors import FileError, require_known
from ortboost.training.data.cifar import find_cifar, load_cifar
from ortboost.training.data.csv_file import read_csv
from ortboost.training.data.idx import find_idx, is_idx, load_idx_pair
from ortboost.training.data.images.config import AugmentConfig, ImageConfig
from ortboost.training.data.images.folder import find_images, load_images
from ortboost.training.data.keys import SPLIT_NAMES
from ortboost.training.data.numpy_files import load_npy, load_npz
from ortboost.training.data.parquet import ParquetTable, find_parquet
from ortboost.training.data.tables import Table
from ortboost.training.protocols import Array

__all__ = ["SPLITS", "find_table", "load_arrays"]

SPLITS = tuple(SPLIT_NAMES)
_KINDS = (
    "Supported: .npz, .npy, .csv, .tsv, .parquet, IDX (MNIST, also .gz), CIFAR-10 binary; or a "
    "folder of .npy files (x.npy, y.npy, named like the arrays), .parquet, IDX or CIFAR-10 files, "
    "or images (DIR/CLASS/IMAGE.png)."
)


def load_arrays(
    path: str | os.PathLike[str],
    *,
    split: str | None = None,
    images: ImageConfig | None = None,
    augment: AugmentConfig | None = None,
) -> dict[str, Array]:
    """Load the arrays of a data set.

    Args:
        path: An ``.npz`` file (stored members are memory-mapped), an IDX file of images or labels
            (the other file of the pair must be in the same folder), a CIFAR-10 ``.bin`` file, a CSV
            or Parquet file, an ``.npy`` file, or a folder of IDX, CIFAR-10, Parquet or ``.npy``
            files, or of images with a folder for each class.
        split: "train", "test" or "val"; selects the files of a folder ("train" if None). It has no
            effect on the keys of an ``.npz`` file, which ``bind_arrays(..., split=)`` selects.
        images: How images are converted to inputs.
        augment: Random augmentation of training images.

    Returns:
        Key to array; ``x`` and ``y`` for IDX and CIFAR-10, the name of the file for ``.npy``, and
        for CSV see :mod:`ortboost.training.data.csv_file`. Pickled data is never loaded.

    Raises:
        FileError: The file is missing, damaged, truncated, empty or of an unknown kind.
        UsageError: The split is unknown.
    """
    if split is not None:
        require_known(split, SPLITS, f"Unknown split '{split}'.", "split")
    source = Path(path)
    if source.is_dir():
        table = find_table(source, split)
        found = _load_folder(source, split or "train") if table is None else table.arrays()
        if found is not None:
            return found
        folder = find_images(source, split or "train")
        if folder is not None:
            return load_images(folder, images or ImageConfig(), augment)
        raise FileError(
            f"The folder has no data files for the split '{split or 'train'}'.",
            where=str(source),
            fix=_KINDS,
        )
    if not source.is_file():
        raise FileError("A data file is missing.", where=str(source), fix="Check the path.")
    if source.stat().st_size == 0:
        raise FileError(
            "A data file is empty.", where=str(source), fix="Write or download it again."
        )
    table = find_table(source, split)
    if table is not None:
        return table.arrays()
    suffix = source.suffix.lower()
    if suffix == ".npz":
        return load_npz(source)
    if suffix == ".npy":
        return {source.stem: load_npy(source)}
    if suffix == ".bin":
        return load_cifar(source)
    if "idx" in source.name or is_idx(source):
        return load_idx_pair(source)
    raise FileError(f"'{source.name}' has an unknown data format.", where=str(source), fix=_KINDS)


def find_table(path: str | os.PathLike[str], split: str | None = None) -> Table | None:
    """The table of a CSV or Parquet file, or of a split in a folder of Parquet files; or None.

    Raises:
        FileError: It is damaged.
    """
    source = Path(path)
    if source.is_dir():
        files = find_parquet(source, split or "train")
        return ParquetTable(files) if files else None
    if not source.is_file() or not source.stat().st_size:
        return None
    if source.suffix.lower() in (".csv", ".tsv"):
        return read_csv(source)
    return ParquetTable([source]) if source.suffix.lower() in (".parquet", ".pq") else None


def _load_folder(folder: Path, split: str) -> dict[str, Array] | None:
    images = find_idx(folder, split)
    if images is not None:
        return load_idx_pair(images)
    batches = find_cifar(folder, split)
    if batches:
        return load_cifar(batches)
    files = (file for file in sorted(folder.glob("*.npy")) if not file.name.startswith("."))
    return {file.stem: load_npy(file) for file in files} or None
