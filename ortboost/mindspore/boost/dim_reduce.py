"""``DimReduce``: an optimizer that steps in the space of principal components of past weights."""

from __future__ import annotations

import dataclasses
import shutil
import tempfile
import weakref
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

from ortboost.boosts.dim_reduce import DimReduce as DimReduceBoost
from ortboost.core.arguments import checked
from ortboost.core.arrays import read_npy
from ortboost.core.errors import FileError, UsageError
from ortboost.core.field_types import Range
from ortboost.mindspore.communication import get_group_size, get_rank, shared_group
from ortboost.mindspore.core.arguments import ArgumentValueError, Count, as_argument_error
from ortboost.mindspore.core.cell import Cell
from ortboost.mindspore.core.network import Network
from ortboost.mindspore.core.parameter import Parameter
from ortboost.mindspore.nn.optimizer import Optimizer
from ortboost.mindspore.nn.updates import OptimizerWrapper, Updates
from ortboost.mindspore.nn.wrap import network_of
from ortboost.program.boost_config import DimReduceSection
from ortboost.runtime.process_group import ProcessGroup
from ortboost.training.components import principal_components, weight_blocks
from ortboost.training.data.batches import part_rows

__all__ = ["DimReduce", "read_components"]

_Share = Annotated[float, Range(0, below=1)]


class DimReduce(OptimizerWrapper):
    """Dimension-reduced training; see :mod:`ortboost.boosts.dim_reduce`.

    Pass it to a training cell in place of the optimizer: gradients never leave the graph, so the
    projection, the line search and the update are graphs too. Of the optimizer only the parameters
    are used, not its rates, momentum and decay.

    With several processes all must make it together. As in MindSpore each passes its own rows of
    the components, and its steps keep only these in memory; a temporary file has all of them. The
    processes may instead all pass all rows, which they then keep: that exchanges fewer bytes per
    step, see docs/cards/dim-reduce.md.

    Args:
        network: The network, or one with its loss.
        optimizer: The optimizer.
        weight: The trained parameters, in the order of the columns of ``pca_mat_local``.
        pca_mat_local: The principal components of this process, ``[rows, n]``: of `k` components
            process `r` of `R` has the rows from `floor(k r / R)` to `floor(k (r + 1) / R)`.
        n_components: Number of components of all processes, `k`.
        rho: Rate of the second trial.
        gamma: Decay of the momentum of the residual.
        alpha: Rate of the residual.
        sigma: Share of the slope that a trial must gain.
        rank: Rank of this process.
        rank_size: Number of processes.

    Raises:
        ArgumentValueError: The components do not fit the parameters, the parameters are not those
            of optimizer and network, a number is out of range or does not match the processes.
        UsageError: Some processes give their own rows, and others all.
        FileError: The temporary file cannot be written.

    Example:
        >>> p = np.load("p.npy")  # doctest: +SKIP
        >>> opt = nn.SGD(net.trainable_params(), 1.0)  # doctest: +SKIP
        >>> own = tuple(net.trainable_params())  # doctest: +SKIP
        >>> opt = DimReduce(net, opt, own, p, len(p), 0.55, 0.9, 0.001, 0.4, 0, 1)  # doctest: +SKIP
        >>> step = BoostTrainOneStepCell(WithLossCell(net, loss_fn), opt)  # doctest: +SKIP
        >>> loss = step(data, label)  # doctest: +SKIP
    """

    @checked
    def __init__(
        self,
        network: Cell,
        optimizer: Optimizer | OptimizerWrapper,
        weight: Sequence[Parameter],
        pca_mat_local: NDArray[Any],
        n_components: Count,
        rho: _Share,
        gamma: _Share,
        alpha: _Share,
        sigma: _Share,
        rank: Annotated[int, Range(0)],
        rank_size: Count,
    ) -> None:
        super().__init__(optimizer)
        _check_processes(rank, rank_size)
        backbone = network_of("DimReduce", network)
        self._order = [p.name for p in _in_order(backbone, weight)]
        if sorted(self._order) != sorted(p.name for p in self.parameters if p.requires_grad):
            raise ArgumentValueError(
                "The weights are not the parameters that the optimizer trains.",
                where="DimReduce, weight",
                fix="Give tuple(net.trainable_params()), and make the optimizer with the same.",
            )
        own = part_rows(n_components, rank, rank_size)
        # As many rows as components: this process has all of them.
        divided = pca_mat_local.shape[:1] != (n_components,)
        shape = (n_components, sum(parameter.size for parameter in weight))
        _check_components(pca_mat_local, (own.stop - own.start, shape[1]) if divided else shape)
        if divided and n_components < rank_size:
            raise ArgumentValueError(
                f"{rank_size} processes cannot share {n_components} components.",
                where="DimReduce, n_components",
                fix="Use more components, or give every process all of them.",
            )
        group = shared_group()
        if group is not None:
            facts = {"pca_mat_local": "own rows" if divided else "all rows", "k, n": shape}
            group.agree(facts, fix="Give every process its own rows, or every process all.")
        # The boost reads a file, which exists as long as this object.
        folder = tempfile.mkdtemp(prefix="ortboost-components-")
        weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        path = str(Path(folder) / "components.npy")
        # The columns follow `weight`; the boost needs them in the order of the step graph.
        ends = np.cumsum([0, *(parameter.size for parameter in weight)])
        columns = {p.name: slice(*ends[i : i + 2]) for i, p in enumerate(weight)}
        rows = range(n_components)[own] if divided else range(n_components)
        _write_components(
            path,
            dict(zip(rows, pca_mat_local, strict=True)),
            shape,
            [columns[name] for name in self._order],
            group if divided else None,
        )
        with as_argument_error("DimReduce"):
            self._boost = DimReduceBoost(
                path, n_components, rho, gamma, alpha, sigma, shard=divided
            )

    def updates(self) -> Updates:
        """How a training step applies it."""
        return dataclasses.replace(
            super().updates(), line_search=self._boost, order=tuple(self._order)
        )


def _check_components(components: NDArray[Any], shape: tuple[int, int]) -> None:
    if components.shape != shape or components.dtype.kind != "f":
        raise ArgumentValueError(
            f"The components are {components.dtype}{list(components.shape)}; floats of the shape "
            f"{list(shape)} are needed.",
            where="DimReduce, pca_mat_local",
            fix="Give the components of these weights: ortboost pca makes them.",
        )


def _write_components(
    path: str,
    rows: Mapping[int, NDArray[Any]],
    shape: tuple[int, int],
    columns: Sequence[slice],
    group: ProcessGroup | None,
) -> None:
    """Write all components to a ``.npy`` file, row by row.

    This process has ``rows``, the others of ``group`` the rest; the parts ``columns`` of each row
    are written in their order.
    """
    header = {"descr": "<f4", "fortran_order": False, "shape": shape}
    try:
        with open(path, "wb") as file:
            np.lib.format.write_array_header_1_0(file, header)
            for index in range(shape[0]):
                row = np.asarray(rows.get(index, np.zeros(shape[1])), np.float32)
                if group is not None:
                    # One process has the row, the others add zeros; all must take part.
                    row = group.sum(row)
                if not np.isfinite(row).all():
                    raise ArgumentValueError(
                        f"The component {index} is not finite.",
                        where="DimReduce, pca_mat_local",
                        fix="Compute the components from finite weights: ortboost pca makes them.",
                    )
                file.write(np.concatenate([row[part] for part in columns]).astype("<f4").data)
    except OSError as error:
        raise FileError(
            "The components cannot be written.",
            where=f"{path}: {error}",
            fix="Check the free space there; TMPDIR names another folder for temporary files.",
        ) from error


def read_components(section: DimReduceSection, network: Network) -> NDArray[np.float32]:
    """Get the components of a configuration: from a file, or from checkpoints in a folder.

    Args:
        section: ``pca_mat_path`` of a ``.npy`` file, or else ``weight_load_dir`` with files of
            :func:`ortboost.save_checkpoint`, at least one more than components.
        network: The network whose weights they are, in the order of its trainable parameters.

    """
    where = "AutoBoost, dim_reduce"
    path = section.pca_mat_path
    # Either the components themselves ...
    if path is not None and Path(path).is_file():
        try:
            found: NDArray[np.float32] = read_npy(path)
        except (OSError, ValueError) as error:
            raise ArgumentValueError(
                "The file of the principal components cannot be read.",
                where=f"{where}, pca_mat_path = {path}: {error}",
                fix="Give a .npy file; 'ortboost pca RUN -o p.npy' makes one.",
            ) from error
        return found[: section.n_components] if found.ndim == 2 else found
    if section.weight_load_dir is None:
        raise ArgumentValueError(
            "The file does not exist."
            if path
            else "Dimension reduction needs principal components.",
            where=f"{where}, pca_mat_path = {path}",
            fix="Give the .npy file that 'ortboost pca RUN' makes, or weight_load_dir, a folder of "
            "checkpoints.",
        )
    # ... or checkpoints, from which they are computed.
    folder = Path(section.weight_load_dir)
    files = sorted(folder.glob("*.safetensors"))
    trained = network.trainable_params()
    with tempfile.TemporaryDirectory() as temporary:
        out = Path(temporary) / "components.npy"
        try:
            principal_components(
                partial(weight_blocks, files, {p.name: p.shape for p in trained}),
                sum(p.size for p in trained),
                section.n_components,
                out,
            )
        except UsageError as error:
            raise ArgumentValueError(
                f"{len(files)} checkpoints are too few for {section.n_components} components.",
                where=f"{where}, weight_load_dir = {folder}: {error.what}",
                fix="Save more with ortboost.save_checkpoint, or lower n_components.",
            ) from error
        made: NDArray[np.float32] = np.load(out)
    return made


def _in_order(network: Network, weight: Sequence[Parameter]) -> list[Parameter]:
    """The weights in the order of the network, which is also that of its step graph."""
    given = {parameter.name for parameter in weight if parameter.state is network.state}
    if len(given) != len(weight):
        raise ArgumentValueError(
            "A weight belongs to another network, or is given twice.",
            where="DimReduce, weight",
            fix="Give tuple(net.trainable_params()) of this network.",
        )
    return [parameter for parameter in network.get_parameters() if parameter.name in given]


def _check_processes(rank: int, size: int) -> None:
    own = (0, 1) if shared_group() is None else (get_rank(), get_group_size())
    if (rank, size) != own:
        raise ArgumentValueError(
            f"Process {rank} of {size} is not this one.",
            where=f"DimReduce, process {own[0]} of {own[1]}",
            fix=f"Give rank={own[0]}, rank_size={own[1]}.",
        )
