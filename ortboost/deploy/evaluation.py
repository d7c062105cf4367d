"""The evaluation path of a network: what :func:`network_auto_process_eval` of MindSpore Boost stands for.

The network is brought in inference form, optimized for the target, compared with itself on made-up or given
inputs, and handed back as a model with the account of what was done.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import onnx_ir as ir
from numpy.typing import NDArray

from ortboost.core.report import Report
from ortboost.deploy.export import Exported, export_network, write_verified
from ortboost.deploy.synthetic_inputs import accepted_feeds, input_ranges
from ortboost.deploy.targets import get_target
from ortboost.deploy.verify import Parity, Tolerance
from ortboost.graph.io import ModelSource, load_model, save_model
from ortboost.runtime.model_evaluator import ModelEvaluator

__all__ = [
    "AutoProcessed",
    "HasModel",
    "network_auto_process_eval",
    "reference_answers",
    "reference_path",
]

Feeds = Sequence[Mapping[str, NDArray[Any]]]


@runtime_checkable
class HasModel(Protocol):
    """A network that can give its inference graph with the present weights."""

    def to_model(self) -> ir.Model:
        """The graph."""
        ...


@dataclass(frozen=True)
class AutoProcessed:
    """An optimized inference graph.

    Args:
        model: The graph, weights inside.
        reports: What the rewrites did, and what they left alone and why.
        parity: The comparison with the network as it was.
    """

    model: ir.Model
    reports: tuple[Report, ...]
    parity: Parity


def network_auto_process_eval(
    network: HasModel | ModelSource,
    *,
    target: str = "onnxruntime",
    feeds: Feeds | None = None,
    tolerance: Tolerance | None = None,
    device: str = "cpu",
) -> AutoProcessed:
    """Optimize a network for evaluation.

    Args:
        network: A network of ours, or an ONNX model; it is not changed.
        target: See :data:`ortboost.deploy.targets.TARGETS`.
        feeds: Batches to compare on; one of made-up inputs if not given.
        tolerance: What may differ.
        device: Where to compare.

    Raises:
        ParityError: The optimized graph answers differently; the rewrite that does it is named.
        UsageError: There is no such target.

    Example:
        >>> network_auto_process_eval("models/lenet5.onnx").parity.ok  # doctest: +SKIP
        True
    """
    source: ModelSource = network.to_model() if isinstance(network, HasModel) else network
    exported = export_network(source, target=get_target(target))
    with tempfile.TemporaryDirectory(prefix="ortboost-") as folder:
        batches, expected = reference_answers(source, exported, Path(folder), feeds, device)
        parity = write_verified(
            exported,
            Path(folder) / "optimized.onnx",
            expected=expected,
            feeds=batches,
            device=device,
            tolerance=tolerance,
        )
    return AutoProcessed(exported.model, exported.reports, parity)


def reference_answers(
    source: ModelSource,
    exported: Exported,
    folder: Path,
    feeds: Feeds | None,
    device: str,
    *,
    seed: int = 0,
) -> tuple[Feeds, list[dict[str, NDArray[Any]]]]:
    """What the graph answered before it was optimized.

    Args:
        source: The model; if it is a file, that very file is run, unless it was in training mode.
        exported: What was made of it.
        folder: Where to put a file that has to be made for it.
        feeds: Batches; one of made-up inputs if not given.
        device: Where to run.
        seed: Seed of made-up inputs.

    Returns:
        The batches, and the outputs of each.
    """
    evaluator = ModelEvaluator(reference_path(source, exported, folder), device=device)
    if feeds is None:
        ranges = input_ranges(exported.base or exported.model)
        made, answer = accepted_feeds(
            evaluator.inputs, evaluator.evaluate, ranges=ranges, seed=seed
        )
        return [made], [answer]
    return feeds, [evaluator.evaluate(batch) for batch in feeds]


def reference_path(source: ModelSource, exported: Exported, folder: Path) -> str:
    """The file that answers as an export has to: the model itself, or its inference form in ``folder``."""
    changed = any(r.rewrite == "to_inference" and r.changed for r in exported.reports)
    if isinstance(source, (str, os.PathLike)) and not changed:
        return os.fspath(source)
    base = exported.base if exported.base is not None else load_model(source)
    path = folder / "reference.onnx"
    save_model(base, path)
    return str(path)
