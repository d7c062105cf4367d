"""``ortboost pca`` as a function: the principal components of the checkpoints of a run."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from ortboost.api.run_folder import CHECKPOINTS
from ortboost.core.arguments import checked
from ortboost.core.errors import FileError
from ortboost.core.files import read_json
from ortboost.program.catalogue import StateEntry
from ortboost.program.program import Program
from ortboost.training.components import principal_components

__all__ = ["pca"]

_BLOCK = 2**26  # bytes of all rows that are held at once; the products are float64


@checked
def pca(
    run: str | os.PathLike[str],
    output: str | os.PathLike[str],
    *,
    components: int = 32,
    checkpoints: str | os.PathLike[str] | None = None,
) -> dict[str, Any]:
    """Find the principal components of the trained weights of a run, for :class:`ortboost.boosts.DimReduce`.

    Weights are read piece by piece: files larger than the memory do.

    Args:
        run: The program folder; its trained parameters decide what is read, and in which order.
        output: The ``.npy`` file to write, float32 `components x weights`.
        components: How many.
        checkpoints: The folder of the checkpoints; that of the run if not given.

    Returns:
        ``components``, ``weights``, ``checkpoints`` and ``explained``, the share of the variance that all of them
        explain together.

    Raises:
        FileError: A checkpoint cannot be read or does not fit, or the file cannot be written.
        UsageError: There are fewer checkpoints than components ask for.
    """
    program = Program.load(run)
    entries = [e for e in program.catalogue.entries("parameter") if e.next is not None]
    folder = Path(run) / CHECKPOINTS if checkpoints is None else Path(checkpoints)
    paths = [path.with_suffix(".safetensors") for path in sorted(folder.glob("step-*.json"))]
    for path in paths:
        _check(path, entries)
    length = sum(int(np.prod(entry.shape, dtype=np.int64)) for entry in entries)
    shares = principal_components(partial(_blocks, paths, entries), length, components, output)
    return {
        "components": components,
        "weights": length,
        "checkpoints": len(paths),
        "explained": float(shares.sum()),
    }


def _check(path: Path, entries: list[StateEntry]) -> None:
    fix = "Use checkpoints of this program; leave a damaged one out."
    try:
        read_json(path.with_suffix(".json"))
        with safe_open(path, framework="numpy") as file:
            known = set(file.keys())
            for entry in entries:
                shape = (
                    tuple(file.get_slice(entry.name).get_shape()) if entry.name in known else None
                )
                if shape != entry.shape:
                    raise FileError(
                        f"The checkpoint has '{entry.name}' as {shape}, {entry.shape} is needed.",
                        where=str(path),
                        fix=fix,
                    )
    except (OSError, SafetensorError) as error:
        raise FileError(
            "A checkpoint cannot be read.", where=f"{path}: {error}", fix=fix
        ) from error


def _blocks(paths: list[Path], entries: list[StateEntry]) -> Iterator[NDArray[np.float32]]:
    """Columns of the matrix of all weights, one row a checkpoint."""
    for entry in entries:
        rows = entry.shape[0] if entry.shape else 1
        width = int(np.prod(entry.shape[1:], dtype=np.int64)) * 8 * max(1, len(paths))
        step = max(1, _BLOCK // max(1, width))
        for start in range(0, rows, step):
            parts = []
            for path in paths:
                with safe_open(path, framework="numpy") as file:
                    if entry.shape:
                        part = file.get_slice(entry.name)[start : min(start + step, rows)]
                    else:
                        part = file.get_tensor(entry.name)
                parts.append(np.asarray(part, np.float32).reshape(-1))
            if parts:
                yield np.stack(parts)
