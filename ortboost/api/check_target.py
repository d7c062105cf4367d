"""Deployment targets as functions: fix a model for one, build an engine.

Example:
    ::

        from ortboost.api import check, check_target as targets

        report = check("model.onnx", target="tensorrt=11", shapes=["x:1,8,32x3x224x224"])
        for finding in report.findings:
            print(finding.rule, finding.severity, finding.node, finding.reason)
        if any(finding.fixable for finding in report.findings):
            targets.fix_for("model.onnx", "fixed.onnx", "tensorrt=11")
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from ortboost.api.image_settings import images_of
from ortboost.api.run_folder import check_output
from ortboost.api.stored_batches import Feeds, padded_batches, read_batches
from ortboost.core.errors import UsageError
from ortboost.deploy.targets import get_checker
from ortboost.deploy.tensorrt import build_engine as engine
from ortboost.deploy.tensorrt.build_engine import EngineFile
from ortboost.deploy.tensorrt.checker import check_tensorrt
from ortboost.deploy.tensorrt.fix_model import FixedModel, fix_for_tensorrt
from ortboost.deploy.tensorrt.profiles import Profile, parse_profile
from ortboost.deploy.tensorrt.table import parse_release
from ortboost.deploy.tolerance import Tolerance, tolerance_for
from ortboost.graph.io import ModelSource, load_model
from ortboost.runtime.model_evaluator import ModelEvaluator
from ortboost.training.data import open_source, static_batch
from ortboost.training.data.images import ImageConfig

__all__ = ["build_engine", "fix_for", "read_shapes"]


def fix_for(
    model: ModelSource,
    out: str | os.PathLike[str],
    target: str = "tensorrt",
    *,
    shapes: Sequence[str] = (),
    verify: Any = None,
    mapping: Mapping[str, str] | None = None,
    rtol: float = 1e-3,
    atol: float = 1e-4,
) -> FixedModel:
    """Apply all automatic fixes for TensorRT, compare with the original, and write.

    Args:
        model: The model.
        out: The file to write.
        target: ``tensorrt``, ``tensorrt=11``...
        shapes: Shape profiles.
        verify: Data to compare on, as for :func:`ortboost.evaluate`; synthetic inputs if not given.
        mapping: Input name to the key of its array.
        rtol: Relative tolerance.
        atol: Absolute tolerance.

    Raises:
        UsageError: The target is not TensorRT, or ``out`` is the model itself, part of a program
            or does not end in ``.onnx``.
        ParityError: The fixed model gives different outputs; nothing was written.
        ModelError: There is nothing to compare, or the opset cannot be converted.
    """
    if get_checker(target) is not check_tensorrt:
        raise UsageError(
            "Only models for TensorRT can be fixed.",
            where=f"target '{target}'",
            fix="Use --fix with --for tensorrt.",
        )
    check_output(out, ".onnx")
    feeds = None
    if verify is not None:
        loaded = load_model(model)
        specs = ModelEvaluator(loaded, device="cpu").inputs
        feeds = _batches(specs, verify, mapping=mapping, images=images_of(loaded))
    return fix_for_tensorrt(
        model,
        out,
        parse_release(target),
        profiles=read_shapes(shapes),
        feeds=feeds,
        tolerance=Tolerance(rtol, atol),
    )


def build_engine(
    model: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    shapes: Sequence[str] = (),
    target: str = "tensorrt",
    precision: str = "fp32",
    verify: Any = None,
    split: str = "test",
    mapping: Mapping[str, str] | None = None,
    workspace: int | None = None,
    timing_cache: str | os.PathLike[str] | None = None,
) -> EngineFile:
    """Build a TensorRT engine from an exported file, and compare the two.

    Never run on a device yet, for lack of TensorRT; it is tested against a stand-in for its API.

    Args:
        model: The ONNX file.
        out: The engine to write; a JSON file with its metadata is written beside it.
        shapes: Shape profiles, such as ``x:1,8,32x3x224x224``.
        target: ``tensorrt``, ``tensorrt=10``: the version of the recipe if TensorRT is missing.
        precision: Precision of the exported file, which determines the tolerance.
        verify: Data to compare on, in batches of the optimum size; synthetic inputs if not given.
        split: The split of a data file that has several.
        mapping: Input name to the key of its array.
        workspace: Bytes of scratch memory.
        timing_cache: File with timings, read and written.

    Raises:
        DependencyError: TensorRT, cuda-python or the GPU is missing; ``fix`` holds the command line
            that builds the engine elsewhere.
        UsageError: A profile is missing or wrong.
        ModelError: TensorRT rejects the model.
        ParityError: The engine gives different outputs; nothing was written.
    """
    profiles = read_shapes(shapes)
    feeds = None
    if verify is not None:
        specs = ModelEvaluator(model, device="cpu").inputs
        best = profiles[0].optimum[0] if profiles else 64
        images = images_of(load_model(model))
        batches = _batches(specs, verify, split, best, mapping, images)
        # The last batch may be shorter than the optimum.
        whole = [batch for batch in batches if len(next(iter(batch.values()))) == best]
        feeds = whole or batches
    return engine.build_engine(
        model,
        out,
        profiles,
        feeds=feeds,
        workspace=workspace,
        timing_cache=timing_cache,
        major=parse_release(target).major,
        tolerance=tolerance_for("fp16" if precision == "fp32" else precision),
    )


def _batches(
    inputs: Sequence[Any],
    data: Any,
    split: str = "test",
    batch_size: int = 64,
    mapping: Mapping[str, str] | None = None,
    images: ImageConfig | None = None,
) -> Sequence[Feeds]:
    """Read data as batches for these inputs, padded if the model fixes the batch size."""
    fixed = static_batch(inputs)
    source = open_source(data, inputs, split, fixed or batch_size, mapping, images=images)
    return padded_batches(read_batches(source), inputs, fixed)[0]


def read_shapes(shapes: Sequence[str]) -> list[Profile]:
    """Parse ``--shape`` arguments."""
    return [parse_profile(text) for text in shapes]
