"""Central differences in float64, for models whose loss is too steep or too flat for float32.

The graph that the portable engine differentiates is evaluated by the reference evaluator of the
``onnx`` package: slow, and independent of both engines and of onnxruntime.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any
from unittest import mock

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

import ortboost as ob
from ortboost.autodiff.portable.engine import PortableEngine
from tests.autodiff.numeric import evaluate

__all__ = ["slopes_in_double"]

_FLOOR = 1e-4
_SIZES = (1e-7, 1e-5, 1e-9, 1e-3, 1e-2)  # how far the loss is to move; the best counts
_ENOUGH = 1e-4


def slopes_in_double(
    path: str, config: ob.ProgramConfig, batch: Mapping[str, NDArray[Any]], seconds: float
) -> dict[str, Any]:
    """The slope along each gradient against its norm, from the largest gradient on.

    Args:
        path: The model.
        config: How to convert it, for plain SGD.
        batch: Names of inputs to arrays.
        seconds: No further tensor is begun after so long; one is always tried.

    Returns:
        How many tensors were tried, the largest relative error and its tensor, the loss in float64,
        and how far that in float32 is off.
    """
    seen: list[tuple[ir.Model, str]] = []
    real = PortableEngine.differentiate

    def differentiate(
        engine: PortableEngine, model: ir.Model, loss: str, wrt: Sequence[str], *, prepared: bool
    ) -> ir.Model:
        seen.append((model.clone(), loss))
        return real(engine, model, loss, wrt, prepared=prepared)

    with mock.patch.object(PortableEngine, "differentiate", differentiate):
        program = ob.build_program(path, config)
    model, loss = seen[-1]
    stepper = ob.Stepper(program, device="cpu", threads=1)
    feeds = {spec.name: batch[spec.name].astype(spec.dtype) for spec in stepper.inputs}
    initial = {name: value.copy() for name, value in stepper.state().items()}
    single = stepper.step(feeds, dict.fromkeys(stepper.groups, 1.0)).loss
    after = stepper.state()
    gradients = {
        entry.name: np.float64(initial[entry.name]) - after[entry.name]
        for entry in program.catalogue.state
        if entry.kind == "parameter" and entry.next is not None
    }
    values = {v.name: {**initial, **feeds}[v.name] for v in model.graph.inputs if v.name}

    def loss_at(name: str, change: NDArray[np.float64]) -> float:
        moved = {**values, name: np.float64(initial[name]) + change}
        return float(np.asarray(evaluate(model, moved, [loss])[0]))

    base = float(np.asarray(evaluate(model, values, [loss])[0]))
    # A gradient of zero is rounding noise in float32: judge it by the largest gradient.
    floor = _FLOOR * max(float(np.linalg.norm(g)) for g in gradients.values())
    errors: dict[str, float] = {}
    started = time.monotonic()
    for name in sorted(gradients, key=lambda n: -float(np.linalg.norm(gradients[n]))):
        gradient = gradients[name]
        norm = float(np.linalg.norm(gradient))
        if errors and (norm < floor or time.monotonic() - started > seconds):
            break
        found = []
        for share in _SIZES:
            size = share / norm
            slope = (
                loss_at(name, size * gradient / norm) - loss_at(name, -size * gradient / norm)
            ) / (2 * size)
            found.append(abs(slope / norm - 1))
            if found[-1] < _ENOUGH:
                break
        errors[name] = min(found)
    worst = max(errors, key=errors.__getitem__)
    return {
        "tensors": len(errors),
        "error": errors[worst],
        "worst": worst,
        "loss": base,
        "loss_error": abs(single - base) / max(abs(base), 1e-6),
    }
