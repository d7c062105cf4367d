r"""Principal components of many large vectors, computed in blocks.

Let `X` be `N x n`, with `N` rows of weights, `N << n`, and centred columns. The components are its
right singular vectors, computed from the small Gram matrix:

    X X^T = U S^2 U^T         N x N, summed over blocks of columns, in float64
    P     = S^-1 U^T X        the first k rows, written block by block

Memory holds one block of columns at a time, whatever `n` is. The sign of each component makes its
entry of largest magnitude positive, as in scikit-learn.

Source: the method of snapshots, Sirovich, Turbulence and the Dynamics of Coherent Structures
(1987).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from ortboost.core.errors import FileError, UsageError
from ortboost.core.files import atomic_path
from ortboost.core.printable import count_of

__all__ = ["principal_components", "weight_blocks"]

_BLOCK = 2**26  # bytes of a block of columns in float64
_NOISE = 1e-12  # relative to the largest eigenvalue: rounding noise of a missing direction


def principal_components(
    blocks: Callable[[], Iterator[NDArray[np.float32]]],
    length: int,
    number: int,
    path: str | os.PathLike[str],
) -> NDArray[np.float64]:
    """Write the first principal components as a ``.npy`` file, float32 `number x length`.

    Args:
        blocks: Returns an iterator over all columns, in blocks ``[N, width]``; called twice.
        length: Number of columns, `n`.
        number: Number of components, `k`.
        path: The file to write.

    Returns:
        The fraction of the variance that each component explains.

    Raises:
        UsageError: The rows span fewer than ``number`` directions.
        FileError: The file cannot be written.
    """
    products: NDArray[np.float64] | None = None
    for block in blocks():
        centred = block - block.mean(axis=0, dtype=np.float64)
        products = centred @ centred.T + (0.0 if products is None else products)
    if products is None:
        raise UsageError("There are no weights.", where="rows", fix="Pass at least one checkpoint.")
    # X X^T = U S^2 U^T: the eigenvalues are the squares of the singular values.
    values, vectors = np.linalg.eigh(products)
    values, vectors = values[::-1], vectors[:, ::-1]  # the largest first
    # At most N - 1: centring takes one direction away.
    rank = int((values > max(values[0], 0.0) * _NOISE).sum())
    if not 1 <= number <= rank:
        raise UsageError(
            f"{count_of(number, 'principal component')} requested, but "
            f"{count_of(len(products), 'checkpoint')} can give at most {rank}.",
            where="--components",
            fix="Save more checkpoints (--checkpoint-every, --keep)"
            + (f", or request {'1 to ' * (rank > 1)}{rank}." if rank else "."),
        )
    # S^-1 U^T, of which the rows of P = S^-1 U^T X are made block by block.
    mixing = (vectors[:, :number] / np.sqrt(values[:number])).T
    with atomic_path(path) as temporary:
        _write(blocks, mixing, length, temporary)
    shares: NDArray[np.float64] = values[:number] / values[values > 0].sum()
    return shares


def _write(
    blocks: Callable[[], Iterator[NDArray[np.float32]]],
    mixing: NDArray[np.float64],
    length: int,
    path: Path,
) -> None:
    shape = (len(mixing), length)
    out = np.lib.format.open_memmap(path, mode="w+", dtype=np.float32, shape=shape)
    largest, start = np.zeros(len(mixing)), 0
    for block in blocks():
        part = mixing @ (block - block.mean(axis=0, dtype=np.float64))
        out[:, start : start + part.shape[1]] = part
        start += part.shape[1]
        peaks = part[np.arange(len(part)), np.abs(part).argmax(axis=1)]
        largest = np.where(np.abs(peaks) > np.abs(largest), peaks, largest)
    for row, peak in enumerate(largest):  # the sign is known only after the last block
        if peak < 0:
            out[row] *= -1
    out.flush()


def weight_blocks(
    paths: Sequence[Path], shapes: Mapping[str, tuple[int, ...]]
) -> Iterator[NDArray[np.float32]]:
    """Columns of the matrix of all weights, one row per safetensors file, in blocks.

    ``shapes`` has the shape of each tensor by name, in the order of the columns.

    Raises:
        FileError: A file cannot be read, or lacks a tensor of that shape.
    """
    for path in paths:
        _check(path, shapes)
    for name, shape in shapes.items() if paths else ():
        rows = shape[0] if shape else 1
        # Bytes in float64 of one row of this tensor, from all files.
        width = int(np.prod(shape[1:], dtype=np.int64)) * 8 * len(paths)
        step = max(1, _BLOCK // max(1, width))
        for start in range(0, rows, step):
            parts = []
            for path in paths:  # one open file at a time: there may be more than a process can open
                with safe_open(path, framework="numpy") as file:
                    # A scalar cannot be sliced.
                    if shape:
                        part = file.get_slice(name)[start : min(start + step, rows)]
                    else:
                        part = file.get_tensor(name)
                parts.append(np.asarray(part, np.float32).reshape(-1))
            yield np.stack(parts)


def _check(path: Path, shapes: Mapping[str, tuple[int, ...]]) -> None:
    fix = "Use undamaged checkpoints of this program or network."
    try:
        with safe_open(path, framework="numpy") as file:
            known = set(file.keys())
            for name, wanted in shapes.items():
                shape = tuple(file.get_slice(name).get_shape()) if name in known else None
                if shape != wanted:
                    raise FileError(
                        f"The checkpoint has '{name}' with shape {shape} instead of {wanted}.",
                        where=str(path),
                        fix=fix,
                    )
    except (OSError, SafetensorError) as error:
        raise FileError(
            "A checkpoint cannot be read.", where=f"{path}: {error}", fix=fix
        ) from error
