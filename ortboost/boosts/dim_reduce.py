r"""DimReduce: quasi-Newton steps in the subspace of principal components of past weights.

Let `P` (`k x n`) be the components, `w` all trained weights as one vector of length `n`, and `g`
their unscaled gradient:

    gk = P g
    B  <- BFGS(B, y = gk - gk_last, sk)     if there is a previous step, and y.sk > 1e-20
    dk = -B gk
    for rate in 1, rho:                     at most two trials; weights and statistics are unchanged
        accepted if  loss(w + rate P^T dk) < loss(w) + sigma rate gk.dk
    m  <- gamma m + g - P^T gk              the momentum of the residual
    w  <- w - alpha m + rate P^T dk         rate = 0 if no trial was accepted

`B`, `gk_last` and `sk = rate dk` are updated only if a trial was accepted. BFGS is in its inverse
form: with `p = 1 / y.sk` and `T = I - p y sk^T`,

    B <- T^T B T + p sk sk^T

There are three graphs on one state: ``step`` (gradients, projection, direction, `m`), ``trial``
(the loss at one rate; run once or twice) and ``accept`` (applies the accepted rate, or 0). The
configured optimizer is not used.

Source: MindSpore Boost 2.10, DimReduce (the algebra, from reading and running it); Li et al., Low
Dimensional Trajectory Hypothesis is True: DNNs Can Be Trained in Tiny Subspaces (2021), for the
idea.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Annotated, ClassVar, Final

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from ortboost.boosts.base import GraphContext, Stage, State, UpdateContext
from ortboost.boosts.roles import SCALE, LineSearch
from ortboost.core.arrays import read_npy
from ortboost.core.errors import ConfigError, FileError
from ortboost.core.field_types import Range
from ortboost.graph.build import Builder
from ortboost.graph.parameters import Parameter
from ortboost.graph.reach import values_by_name

__all__ = ["PROJECTED", "DimReduce", "read_basis"]

_FLOAT, _BOOL, _INT64 = ir.DataType.FLOAT, ir.DataType.BOOL, ir.DataType.INT64
_OWN: Final = "ortboost/dim_reduce"
PROJECTED: Final = f"{_OWN}/projected"
"""Name of the tensor `gk`, still scaled; the processes exchange only it if `alpha` is 0."""
_BASIS, _B, _B_NEXT = f"{_OWN}/basis", f"{_OWN}/B", f"{_OWN}/B_next"
_GK, _GK_LAST, _DK, _SK = (f"{_OWN}/{name}" for name in ("gk", "gk_last", "dk", "sk"))
_STARTED: Final = f"{_OWN}/started"
_FLAT_CURVE: Final = 1e-20  # smaller y.sk carries no information on the curvature; as in MindSpore


@dataclass(frozen=True)
class DimReduce(LineSearch):
    """Dimension-reduced training.

    Args:
        pca_mat_path: ``.npy`` file of the components, `k x n`, written by ``ortboost pca``; it is
            copied into the program.
        n_components: `k`, to use the first `k` components of the file; 0 for all.
        rho: Rate of the second trial.
        gamma: Decay of the momentum of the residual.
        alpha: Learning rate of the residual; with 0, training stays in the subspace, and processes
            exchange only `k` values.
        sigma: Sufficient-decrease (Armijo) constant: fraction of the slope by which a trial must
            reduce the loss.
        first: Initial `B`, as a multiple of the identity (1 in MindSpore). Use less if no rate is
            ever accepted because a step of the gradient's length is too long.

    Raises:
        ConfigError: A value out of range.

    Example:
        >>> DimReduce("components.npy", n_components=16).to_dict()["n_components"]
        16
    """

    pca_mat_path: str
    n_components: Annotated[int, Range(0)] = 0
    rho: Annotated[float, Range(0, below=1)] = 0.55
    gamma: Annotated[float, Range(0, below=1)] = 0.9
    alpha: Annotated[float, Range(0, below=1)] = 0.001
    sigma: Annotated[float, Range(0, below=1)] = 0.4
    first: Annotated[float, Range(above=0)] = 1.0

    name: ClassVar[str] = "dim-reduce"
    stage: ClassVar[Stage] = "update"
    card: ClassVar[str] = "dim-reduce"
    excludes: ClassVar[Mapping[str, str]] = MappingProxyType(
        {
            "grad-freeze": "the components span all parameters",
            "grad-accumulation": "the line search uses one batch",
            "group-loss-scale": "gradients are projected together, so they need one scale",
            "adasum": "both define the step",
            "thor": "the step is a line search, not the gradient",
            "clip": "the step is a line search, not the gradient",
            "grad-centralization": "the step is a line search, not the gradient",
        }
    )

    @property
    def rates(self) -> tuple[float, ...]:
        """The rates to try, in order."""
        return (1.0, self.rho)

    @property
    def exchanged(self) -> str | None:
        """The name of `gk` if the residual is not trained; only it is exchanged then."""
        return None if self.alpha else PROJECTED

    # ---- the graph `step` ---------------------------------------------------------------------

    def states(self, trained: Sequence[Parameter]) -> list[State]:
        """The components, the state of BFGS and the trials, and the momentum of the residual.

        Raises:
            FileError: The file of components cannot be read, or does not fit the parameters.
        """
        basis = read_basis(self.pca_mat_path, sum(p.size for p in trained), self.n_components)
        k, zeros = len(basis), np.zeros(len(basis), np.float32)
        start = self.first * np.eye(k, dtype=np.float32)
        found = [
            State(_BASIS, basis, "slot", "basis", changes_at="never"),
            State(_B, start, changes_at="never"),
            State(_B_NEXT, start),
            State(_GK, zeros),
            State(_DK, zeros),
        ]
        found += [State(name, zeros, changes_at="never") for name in (_GK_LAST, _SK)]
        found.append(State(_STARTED, np.zeros((), np.int64), changes_at="never"))
        if self.alpha:
            found += [
                State(_momentum(p), np.zeros(p.shape, np.float32), "slot", "residual")
                for p in trained
            ]
        return found

    def rewrite_gradients(self, graph: GraphContext) -> None:
        """Project the scaled gradients.

        Raises:
            ConfigError: A parameter is not float32.
        """
        other = next((p for p in graph.trained if p.dtype != _FLOAT), None)
        if other is not None:
            raise ConfigError(
                f"The parameter '{other.name}' is {other.dtype}; dim-reduce needs float32.",
                where=f"boost '{self.name}'",
                fix="Freeze it, or remove the boost.",
            )
        b = Builder(graph.model.graph, _OWN)
        made = values_by_name(graph.model.graph)
        basis = ir.val(_BASIS, _FLOAT)  # the update declares its shape
        graph.model.graph.inputs.append(basis)
        whole = _joined(b, [made[f"{p.name}_grad"] for p in graph.trained])
        number = len(
            read_basis(self.pca_mat_path, sum(p.size for p in graph.trained), self.n_components)
        )
        graph.memory[self.name] = b.op("MatMul", basis, whole, name=PROJECTED, shape=(number,))
        b.flush()

    def transform_gradients(
        self, update: UpdateContext, gradients: Mapping[str, ir.Value]
    ) -> Mapping[str, ir.Value]:
        """Compute direction, BFGS and momentum into the boost's states; gradients are unchanged."""
        b, old, gk = update.b, update.states, update.memory[self.name]
        if SCALE in old:
            gk = b.op("Div", gk, old[SCALE])
        b_next = self._bfgs(b, old, gk)
        dk = b.op("Neg", b.op("MatMul", b_next, gk))
        update.next_of |= {_GK: b.op("Identity", gk), _DK: dk, _B_NEXT: b_next}
        if self.alpha:
            inside = _parts(b, b.op("MatMul", gk, old[_BASIS]), update.trained)
            for p, projected in zip(update.trained, inside, strict=True):
                residual = b.op("Sub", gradients[p.name], projected)
                decayed = b.op("Mul", old[_momentum(p)], b.const(self.gamma))
                update.next_of[_momentum(p)] = b.op("Add", decayed, residual)
        return gradients

    def _bfgs(self, b: Builder, old: Mapping[str, ir.Value], gk: ir.Value) -> ir.Value:
        """The next `B` if there is a previous step with positive curvature, else `B`."""
        y, sk, matrix = b.op("Sub", gk, old[_GK_LAST]), old[_SK], old[_B]
        curve = b.op("ReduceSum", b.op("Mul", y, sk), keepdims=0, shape=())
        bent = b.op("Greater", curve, b.const(_FLAT_CURVE), dtype=_BOOL)
        started = b.op("Greater", old[_STARTED], b.const(0, _INT64), dtype=_BOOL)
        usable = b.op("And", bent, started, dtype=_BOOL)
        # 1 / y.sk; of a 1 if it is not used, which avoids a division by 0.
        p = b.op("Reciprocal", b.op("Where", usable, curve, b.const(1.0), dtype=_FLOAT))
        column, row = b.ints(1), b.ints(0)
        outer = b.op("Mul", b.op("Unsqueeze", y, column), b.op("Unsqueeze", sk, row))
        eye = b.op("EyeLike", matrix, dtype=_FLOAT)
        # B <- T^T B T + p sk sk^T with T = I - p y sk^T, all [k, k]
        t = b.op("Sub", eye, b.op("Mul", outer, p))
        turned = b.op("MatMul", b.op("Transpose", t, perm=[1, 0]), b.op("MatMul", matrix, t))
        square = b.op("Mul", b.op("Unsqueeze", sk, column), b.op("Unsqueeze", sk, row))
        return b.op(
            "Where", usable, b.op("Add", turned, b.op("Mul", square, p)), matrix, dtype=_FLOAT
        )

    # ---- the graphs `trial` and `accept` ------------------------------------------------------

    def trial_states(self) -> tuple[str, ...]:
        """The states that a trial reads in addition to those of the forward pass."""
        return (_BASIS, _DK, _GK)

    def trial_weights(
        self,
        b: Builder,
        states: Mapping[str, ir.Value],
        rate: ir.Value,
        trained: Sequence[Parameter],
    ) -> tuple[dict[str, ir.Value], ir.Value]:
        """The weights at a rate, and the required change of the loss there (negative)."""
        steps = _parts(b, b.op("MatMul", states[_DK], states[_BASIS]), trained)
        found = {
            p.name: b.op("Add", states[p.name], b.op("Mul", step, rate))
            for p, step in zip(trained, steps, strict=True)
        }
        slope = b.op("ReduceSum", b.op("Mul", states[_GK], states[_DK]), keepdims=0, shape=())
        return found, b.op("Mul", b.op("Mul", slope, rate), b.const(self.sigma))

    def accept_states(self, trained: Sequence[Parameter]) -> tuple[str, ...]:
        """The states that ``accept`` reads or writes, except parameters."""
        own = (_BASIS, _B, _B_NEXT, _GK, _GK_LAST, _DK, _SK, _STARTED)
        return (*own, *(_momentum(p) for p in trained if self.alpha))

    def accepted(
        self,
        b: Builder,
        states: Mapping[str, ir.Value],
        rate: ir.Value,
        trained: Sequence[Parameter],
    ) -> dict[str, ir.Value]:
        """The next states for the accepted rate, 0 if none was accepted."""
        moved = b.op("Greater", rate, b.const(0.0), dtype=_BOOL)

        def chosen(new: ir.Value, old: str) -> ir.Value:
            return b.op("Where", moved, new, states[old], dtype=_FLOAT, shape=states[old].shape)

        found = {
            _B: chosen(states[_B_NEXT], _B),
            _GK_LAST: chosen(states[_GK], _GK_LAST),
            _SK: chosen(b.op("Mul", states[_DK], rate), _SK),
            _STARTED: b.op("Identity", b.const(1, _INT64), shape=()),
        }
        weights, _ = self.trial_weights(b, states, rate, trained)
        for p in trained:
            if self.alpha:
                residual = b.op("Mul", states[_momentum(p)], b.const(self.alpha))
                found[p.name] = b.op("Sub", weights[p.name], residual, shape=p.shape)
            else:
                found[p.name] = b.op("Identity", weights[p.name], shape=p.shape)
        return found


def read_basis(path: str, length: int, number: int = 0) -> NDArray[np.float32]:
    """Read the components.

    Args:
        path: The ``.npy`` file.
        length: `n`, the number of elements of all trained weights.
        number: Number of components to use; 0 for all.

    Returns:
        The components, float32 ``[k, n]``.

    Raises:
        FileError: The file cannot be read, is not a finite matrix, or its shape does not fit.
    """
    fix = (
        "Create it with 'ortboost pca RUN' from checkpoints of this model with the same trained "
        "parameters."
    )
    try:
        basis = read_npy(path)
    except (OSError, ValueError) as error:
        raise FileError(
            "Cannot read the file of principal components.",
            where=f"{path}: {error}",
            fix=fix,
        ) from error
    if basis.ndim != 2 or basis.shape[1] != length or len(basis) < max(1, number):
        raise FileError(
            f"The principal components have shape {list(basis.shape)}; expected at least "
            f"{[max(1, number), length]}.",
            where=path,
            fix=fix,
        )
    found = np.array(basis[: number or None], np.float32, order="C")
    if not np.isfinite(found).all():
        raise FileError("The principal components are not finite.", where=path, fix=fix)
    return found


def _momentum(parameter: Parameter) -> str:
    return f"ortboost/slot/residual/{parameter.name}"


def _joined(b: Builder, values: Sequence[ir.Value]) -> ir.Value:
    flat = [b.op("Reshape", value, b.ints(-1)) for value in values]
    return b.op("Concat", *flat, axis=0) if len(flat) > 1 else flat[0]


def _parts(b: Builder, whole: ir.Value, trained: Sequence[Parameter]) -> list[ir.Value]:
    """Split a vector of all weights into the weights."""
    if len(trained) == 1:
        pieces: Sequence[ir.Value] = [whole]
    else:
        sizes = b.ints(*(p.size for p in trained))
        pieces = b.ops("Split", whole, sizes, names=[None] * len(trained), axis=0)
    return [
        b.op("Reshape", piece, b.ints(*p.shape), shape=p.shape)
        for p, piece in zip(trained, pieces, strict=True)
    ]
