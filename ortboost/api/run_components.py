"""``ortboost pca`` as a function: principal components of the checkpoints of a run."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from ortboost.api.run_folder import CHECKPOINTS, check_output
from ortboost.core.arguments import checked
from ortboost.core.errors import FileError
from ortboost.core.field_types import Range
from ortboost.program.program import Program
from ortboost.training.checkpoint_file import RefusedError, named_tensors
from ortboost.training.components import principal_components, weight_blocks

__all__ = ["pca"]


@checked
def pca(
    run: str | os.PathLike[str],
    output: str | os.PathLike[str],
    *,
    components: Annotated[int, Range(1)] = 32,
    checkpoints: str | os.PathLike[str] | None = None,
) -> dict[str, Any]:
    """Compute the principal components of the trained weights of a run.

    They are for :class:`ortboost.boosts.DimReduce`. Weights are read in blocks, so that files may
    be larger than memory.

    Args:
        run: The program folder; its trained parameters determine the weights and their order.
        output: The ``.npy`` file to write, float32 `components x weights`.
        components: Number of components.
        checkpoints: The folder of the checkpoints; that of the run if not given.

    Returns:
        ``components``, ``weights``, ``checkpoints`` and ``explained``, the share of the variance
        that the components explain together.

    Raises:
        FileError: A checkpoint cannot be read or does not fit, or the file cannot be written.
        UsageError: There are too few checkpoints for this number of components, or ``output`` is
            part of a program or does not end in ``.npy``.

    Example:
        >>> import ortboost as ob
        >>> program = ob.convert("models/mlp.onnx", "runs/example/pca", overwrite=True)
        >>> data = "models/digits.npz"
        >>> summary = ob.train("runs/example/pca", data, epochs=3, progress=None)
        >>> ob.pca("runs/example/pca", "components.npy", components=2)["weights"]
        2410
    """
    check_output(output, ".npy")
    program = Program.load(run)
    entries = [e for e in program.catalogue.entries("parameter") if e.next is not None]
    folder = Path(run) / CHECKPOINTS if checkpoints is None else Path(checkpoints)
    try:
        paths = [named_tensors(path) for path in sorted(folder.glob("step-*.json"))]
    except RefusedError as error:
        raise FileError(
            "A checkpoint cannot be read.",
            where=f"{error.path}: {error.reason}",
            fix="Use undamaged checkpoints of this program or network.",
        ) from error
    shapes = {entry.name: entry.shape for entry in entries}
    length = sum(int(np.prod(shape, dtype=np.int64)) for shape in shapes.values())
    shares = principal_components(partial(weight_blocks, paths, shapes), length, components, output)
    return {
        "components": components,
        "weights": length,
        "checkpoints": len(paths),
        "explained": float(shares.sum()),
    }
