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

There are three graphs on one state: ``step`` (gradients, projection, `P^T dk`, `m`), ``trial`` (the
loss at one rate; run once or twice) and ``accept`` (applies the accepted rate, or 0). The
configured optimizer is not used.

With ``shard``, process `r` holds only the rows `P_r` of `P` and the rows `E_r` of the identity:

    gk = sum over r of E_r^T P_r g        P^T [gk dk] = sum over r of P_r^T E_r [gk dk]

The sums are exchange points of the update (:mod:`ortboost.runtime.exchange`), as `g` must be the
gradient of the whole batch; one process has `E_r` = the identity.

Source: MindSpore Boost 2.10, DimReduce (the algebra, from reading and running it); Li et al., Low
Dimensional Trajectory Hypothesis is True: DNNs Can Be Trained in Tiny Subspaces (2021), for the
idea; Rajbhandari et al., ZeRO (2020), for state that is divided among the processes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Final

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from ortboost.boosts.base import GraphContext, Key, Stage, State, UpdateContext
from ortboost.boosts.roles import EXCHANGED, SCALE, LineSearch
from ortboost.core.arrays import read_npy
from ortboost.core.errors import ConfigError, FileError
from ortboost.core.field_types import Range
from ortboost.graph.build import Builder
from ortboost.graph.formulas import Term
from ortboost.graph.reach import values_by_name
from ortboost.graph.weights.parameters import Parameter

__all__ = ["PROJECTED", "DimReduce", "read_basis"]

_FLOAT, _INT64 = ir.DataType.FLOAT, ir.DataType.INT64
_OWN: Final = "ortboost/dim_reduce"
PROJECTED: Final = f"{_OWN}/projected"
"""Name of the tensor `gk`, still scaled; the processes exchange only it if `alpha` is 0."""
_BASIS, _ROWS, _DIRECTION = f"{_OWN}/basis", f"{_OWN}/rows", f"{_OWN}/direction"
_B, _B_NEXT = f"{_OWN}/B", f"{_OWN}/B_next"
_GK, _GK_LAST, _DK, _SK = (f"{_OWN}/{name}" for name in ("gk", "gk_last", "dk", "sk"))
_STARTED: Final = f"{_OWN}/started"
_EXCHANGED: Final = f"{EXCHANGED}value/dim_reduce"
_MADE = Key[tuple[ir.Value, ...]]("gk, dk, B_next, and gk and dk in the space of the weights")
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
            exchange only `k` values (unless ``shard`` is set).
        sigma: Sufficient-decrease (Armijo) constant: fraction of the slope by which a trial must
            reduce the loss.
        first: Initial `B`, as a multiple of the identity (1 in MindSpore). Use less if no rate is
            ever accepted because a step of the gradient's length is too long.
        shard: Divide the rows of `P` among the processes, which then exchange gradients and steps
            instead of `k` values. The file is mapped, not read: it must not change until the
            program is written, or as long as an unwritten one is in use.

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
    first: Annotated[float, Range(above=0, below=1e37)] = 1.0
    shard: bool = False

    name: ClassVar[str] = "dim-reduce"
    stage: ClassVar[Stage] = "update"
    card: ClassVar[str] = "dim-reduce"
    excludes: ClassVar[Mapping[str, str]] = {
        "grad-freeze": "the components span all parameters",
        "grad-accumulation": "the line search uses one batch",
        "group-loss-scale": "gradients are projected together, so they need one scale",
        "adasum": "both define the step",
        "thor": "the step is a line search, not the gradient",
        "clip": "the step is a line search, not the gradient",
        "grad-centralization": "the step is a line search, not the gradient",
    }

    @property
    def rates(self) -> tuple[float, ...]:
        """The rates to try, in order."""
        return (1.0, self.rho)

    @property
    def exchanged(self) -> str | None:
        """The name of `gk` if all that is needed of the gradients is their projection."""
        return None if self.alpha or self.shard else PROJECTED

    def _basis(self, length: int) -> NDArray[np.float32]:
        return read_basis(self.pca_mat_path, length, self.n_components, mapped=self.shard)

    # ---- the graph `step` ---------------------------------------------------------------------

    def states(self, trained: Sequence[Parameter]) -> list[State]:
        """The components, the state of BFGS and the trials, and the momentum of the residual.

        Raises:
            FileError: The file of components cannot be read, or does not fit the parameters.
        """
        basis = self._basis(sum(p.size for p in trained))
        k, zeros = len(basis), np.zeros(len(basis), np.float32)
        start = self.first * np.eye(k, dtype=np.float32)
        found = [
            State(_BASIS, basis, "slot", "basis", changes_at="never", sharded=self.shard),
            State(_DIRECTION, np.zeros(basis.shape[1], np.float32), "slot", "direction"),
            State(_B, start, changes_at="never"),
            State(_B_NEXT, start),
            State(_GK, zeros),
            State(_DK, zeros),
        ]
        if self.shard:
            eye = np.eye(k, dtype=np.float32)
            found.append(State(_ROWS, eye, changes_at="never", sharded=True))
        found += [State(name, zeros, changes_at="never") for name in (_GK_LAST, _SK)]
        found.append(State(_STARTED, np.zeros((), np.int64), changes_at="never"))
        if self.alpha:
            found += [
                State(_momentum(p), np.zeros(p.shape, np.float32), "slot", "residual")
                for p in trained
            ]
        return found

    def rewrite_gradients(self, graph: GraphContext) -> None:
        """Project the scaled gradients, and compute the direction outside of all branches.

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
        inputs = graph.model.graph.inputs
        scale = made.get(SCALE)
        kinds = {_STARTED: _INT64, **dict.fromkeys((_BASIS, _B, _GK_LAST, _SK), _FLOAT)}
        if self.shard:
            kinds[_ROWS] = _FLOAT
        old = {name: ir.val(name, kind) for name, kind in kinds.items()}
        inputs.extend(old.values())  # the update declares their shapes
        # Project. Gradients are still scaled here, so `gk` is unscaled after the processes' sum.
        whole = _joined(b, [made[f"{p.name}_grad"] for p in graph.trained])
        length = sum(p.size for p in graph.trained)
        k = len(self._basis(length))
        if self.shard:
            # [k_r], spread over the places of these rows in `gk`, with zeros for the others.
            own = b.op("MatMul", b.op("MatMul", old[_BASIS], whole), old[_ROWS])
            gk = b.op("Identity", own, name=f"{_EXCHANGED}/gk", shape=(k,))
        else:
            gk = b.op("MatMul", old[_BASIS], whole, name=PROJECTED, shape=(k,))
        if scale is not None:
            gk = b.op("Div", gk, scale)
        # The direction, and both vectors back in the space of the weights: [1 or 2, n].
        b_next = self._bfgs(b, old, gk)
        dk = b.op("Neg", b.op("MatMul", b_next, gk))
        both = [gk, dk] if self.alpha else [dk]  # one pass over the components for both
        rows = b.op("Concat", *(b.op("Unsqueeze", v, b.ints(0)) for v in both), axis=0)
        if self.shard:
            rows = b.op("MatMul", rows, b.op("Transpose", old[_ROWS], perm=[1, 0]))
        back = b.op("MatMul", rows, old[_BASIS], shape=(len(both), length))
        if self.shard:
            back = b.op("Identity", back, name=f"{_EXCHANGED}/back", shape=(len(both), length))
        graph.memory[_MADE] = (gk, dk, b_next, back)
        b.flush()

    def transform_gradients(
        self, update: UpdateContext, gradients: Mapping[str, ir.Value]
    ) -> Mapping[str, ir.Value]:
        """Keep direction, BFGS and momentum in the boost's states; gradients are unchanged."""
        b, old = update.b, update.states
        gk, dk, b_next, back = update.memory[_MADE]
        for name, value in ((_GK, gk), (_DK, dk), (_B_NEXT, b_next)):
            update.next_of[name] = b.op("Identity", value)
        # The rows of `back` are P^T gk, with a residual, and P^T dk.
        update.next_of[_DIRECTION] = b.op("Gather", back, b.const(-1, _INT64), axis=0)
        if self.alpha:
            whole = b.op("Gather", back, b.const(0, _INT64), axis=0)
            for p, projected in zip(update.trained, _parts(b, whole, update.trained), strict=True):
                residual = b.op("Sub", gradients[p.name], projected)
                decayed = b.op("Mul", old[_momentum(p)], b.const(self.gamma))
                update.next_of[_momentum(p)] = b.op("Add", decayed, residual)
        return gradients

    def _bfgs(self, b: Builder, old: Mapping[str, ir.Value], gk: ir.Value) -> ir.Value:
        """The next `B` if there is a previous step with positive curvature, else `B`."""
        y, sk, matrix = Term(b, gk) - old[_GK_LAST], Term(b, old[_SK]), Term(b, old[_B])
        curve = Term(b, (y * sk).call("ReduceSum", keepdims=0).value, ir.Shape(()))
        started = b.op("Greater", old[_STARTED], b.const(0, _INT64))
        # The first accepted step has no previous one to compare with.
        usable = (curve > _FLAT_CURVE).call("And", started)
        # 1 / y.sk; of a 1 if it is not used, which avoids a division by 0.
        p = Term(b, usable.where(curve, 1.0).call("Reciprocal").value)
        row, column = sk.call("Unsqueeze", b.ints(0)), b.ints(1)
        eye = Term(b, b.op("EyeLike", matrix.value, dtype=_FLOAT))
        # B <- T^T B T + p sk sk^T with T = I - p y sk^T, all [k, k]
        t = eye - y.call("Unsqueeze", column) * row * p
        turned = t.call("Transpose", perm=[1, 0]) @ (matrix @ t)
        following = turned + sk.call("Unsqueeze", column) * row * p
        return Term(b, usable.value).where(following, matrix).value

    # ---- the graphs `trial` and `accept` ------------------------------------------------------

    def trial_states(self) -> tuple[str, ...]:
        """The states that a trial reads in addition to those of the forward pass."""
        return (_DIRECTION, _DK, _GK)

    def trial_weights(
        self,
        b: Builder,
        states: Mapping[str, ir.Value],
        rate: ir.Value,
        trained: Sequence[Parameter],
    ) -> tuple[dict[str, ir.Value], ir.Value]:
        """The weights at a rate, and the required change of the loss there (negative)."""
        steps = _parts(b, states[_DIRECTION], trained)
        found = {
            p.name: (Term(b, states[p.name]) + Term(b, step) * rate).value
            for p, step in zip(trained, steps, strict=True)
        }
        slope = (Term(b, states[_GK]) * states[_DK]).call("ReduceSum", keepdims=0)
        return found, (slope * rate * self.sigma).value

    def accept_states(self, trained: Sequence[Parameter]) -> tuple[str, ...]:
        """The states that ``accept`` reads or writes, except parameters."""
        own = (_DIRECTION, _B, _B_NEXT, _GK, _GK_LAST, _DK, _SK, _STARTED)
        return (*own, *(_momentum(p) for p in trained if self.alpha))

    def accepted(
        self,
        b: Builder,
        states: Mapping[str, ir.Value],
        rate: ir.Value,
        trained: Sequence[Parameter],
    ) -> dict[str, ir.Value]:
        """The next states for the accepted rate, 0 if none was accepted."""
        moved = b.op("Greater", rate, b.const(0.0))

        def chosen(new: ir.Value, old: str) -> ir.Value:
            return b.op("Where", moved, new, states[old], shape=states[old].shape)

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
                # The residual moves the weights even if no rate was accepted.
                found[p.name] = b.op("Sub", weights[p.name], residual, shape=p.shape)
            else:
                found[p.name] = b.op("Identity", weights[p.name], shape=p.shape)
        return found


def read_basis(
    path: str, length: int, number: int = 0, *, mapped: bool = False
) -> NDArray[np.float32]:
    """Read the components, float32 ``[k, n]``, of a ``.npy`` file.

    ``length`` is `n`, the number of elements of all trained weights, ``number`` that of the
    components to use, 0 for all. With ``mapped`` the file is mapped instead of read into memory, if
    it has this type and order.

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
            f"The principal components have shape {list(basis.shape)}; {max(1, number)} or more "
            f"rows of {length} columns are needed, one for each trained weight.",
            where=path,
            fix=fix,
        )
    # `read_npy` maps the file; if type and order fit, this does not copy it.
    found = np.asarray(basis[: number or None], np.float32, order="C")
    if not mapped:
        found = found.copy()
    # Row by row: a mask of the whole would take a quarter of the memory again.
    if not all(np.isfinite(row).all() for row in found):
        raise FileError("The principal components are not finite.", where=path, fix=fix)
    return found


def _momentum(parameter: Parameter) -> str:
    return f"ortboost/slot/residual/{parameter.name}"


def _joined(b: Builder, values: Sequence[ir.Value]) -> ir.Value:
    flat = [b.op("Reshape", value, b.ints(-1)) for value in values]
    return b.combined("Concat", flat, axis=0)


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
