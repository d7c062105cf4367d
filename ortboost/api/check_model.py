"""``ortboost check`` as a function: what prevents a model from being trained or deployed."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import overload

from ortboost.api.check_target import read_shapes
from ortboost.api.former_run import trained_network
from ortboost.autodiff.check import TrainabilityReport, check_trainable
from ortboost.core.arguments import checked
from ortboost.core.errors import UsageError
from ortboost.deploy.findings import TargetReport
from ortboost.deploy.targets import get_checker
from ortboost.graph.io import ModelSource
from ortboost.program.choose_engine import choose_engine
from ortboost.program.config import ProgramConfig

__all__ = ["check"]


@overload
def check(model: ModelSource, config: ProgramConfig | None = None) -> TrainabilityReport: ...


@overload
def check(model: ModelSource, *, target: str, shapes: Sequence[str] = ()) -> TargetReport: ...


@checked
def check(
    model: ModelSource,
    config: ProgramConfig | None = None,
    *,
    target: str | None = None,
    shapes: Sequence[str] = (),
) -> TrainabilityReport | TargetReport:
    """List everything that prevents training a model, or running it on a target.

    Args:
        model: The model, or a program folder. Of a folder, the network is checked for training
            (:func:`ortboost.convert` accepts a folder, too), and the steps for ``cuda``.
        config: The configuration to convert it with.
        target: Check for this target instead of training: ``onnxruntime``, ``cuda``,
            ``cuda=1.19.2``, ``tensorrt``, ``tensorrt=11``, or ``tensorrt=10.3``.
        shapes: Shape profiles for TensorRT, such as ``x:1,8,32x3x224x224``.

    Raises:
        FileError: The file is not a readable model.
        UsageError: The target is unknown, a profile is wrong, or both a configuration and a target
            are given.
        DependencyError: The check needs ONNX Runtime, which is not installed.

    Example:
        >>> import ortboost as ob
        >>> ob.check("models/mlp.onnx").trainable
        True
        >>> ob.check("models/lenet5.onnx", target="tensorrt=11").ok
        True
    """
    if target is not None and target != "train":
        if config is not None:
            raise UsageError(
                "A configuration is for training, but a target runs the model unchanged.",
                where=f"config and target='{target}'",
                fix="Leave one of the two out.",
            )
        report: TargetReport = get_checker(target)(model, target, read_shapes(shapes))
        return report
    if shapes:
        raise UsageError(
            "Shape profiles need a target.",
            where="shapes",
            fix="Give target='tensorrt=11' too.",
        )
    config = config or ProgramConfig()
    former = trained_network(model, "initial", None)  # for the graph, not the weights
    model = model if former is None else former[0]
    chosen = choose_engine(model, config)
    forward = chosen.forward
    trained = {parameter.name for parameter in forward.trained}
    parameters = tuple(
        {**parameter.to_dict(), "trained": parameter.name in trained}
        for parameter in forward.parameters.values()
    )
    found = check_trainable(
        forward.model,
        wrt=[parameter.name for parameter in forward.trained],
        loss=forward.loss.objective,
        engine=chosen.engine,
        selected=config.selects,
    )
    notes = (*forward.notes, *found.notes)
    return dataclasses.replace(found, notes=notes, parameters=parameters)
