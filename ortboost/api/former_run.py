"""Fine-tuning: a trained run as the starting point of another."""

from __future__ import annotations

import os
from pathlib import Path

import onnx_ir as ir

from ortboost.api.run_folder import CHECKPOINTS, load_run
from ortboost.core.errors import UsageError
from ortboost.core.report import Report
from ortboost.deploy.fold_full_norm import fold_full_norm
from ortboost.deploy.rewrites.merge_low_rank import merge_low_rank
from ortboost.deploy.strip import inference_model
from ortboost.graph.source import named_source
from ortboost.program.program import MANIFEST

__all__ = ["trained_network"]


def trained_network(
    source: object, checkpoint: str, out: str | os.PathLike[str] | None, *, new_head: bool = False
) -> tuple[ir.Model, Report] | None:
    """Load the network of a run with its trained weights, as written by ``export --no-optimize``.

    Adapters of the boost LoRA are merged, as by any export.

    Args:
        source: A program folder, or a checkpoint file in one; anything else is not a run.
        checkpoint: The checkpoint of a folder; see :func:`ortboost.api.run_folder.load_run`.
        out: Folder of the new program, if one is written; it must be another one.
        new_head: Whether the head will be replaced; a full-normalization head is then first
            converted to a plain layer.

    Returns:
        The network and a report that names the checkpoint; ``None`` if ``source`` is not a run.
    """
    if not isinstance(source, str | os.PathLike):
        return None
    path = Path(source)
    # A checkpoint file stands for its run.
    if path.suffix == ".json" and path.parent.name == CHECKPOINTS:
        path, checkpoint = path.parent.parent, str(path)
    if not (path / MANIFEST).is_file():
        return None
    if out is not None and Path(out).resolve() == path.resolve():
        raise UsageError(
            "The new program would replace the run that it starts from.",
            where=str(out),
            fix="Give another folder with -o.",
        )
    program, state, found = load_run(path, checkpoint)
    model, _ = inference_model(program, state)
    report = Report("trained_network")
    if any(boost.name == "lora" for boost in program.config.enabled_boosts):
        merged = merge_low_rank(model)
        if merged.changed:
            report.notes.append("its LoRA adapters were merged into the weights of their layers")
        if merged.kept:
            why = next(iter(merged.kept.values()))
            report.notes.append(f"LoRA adapters of the run stay nodes of the network: {why}")
    if new_head and fold_full_norm(model).modified:
        report.notes.append(
            "the full-normalization head became a plain layer on normalized features, without "
            "bias, and so is the new head; --boost full-norm-head converts it back"
        )
    which = "as converted" if found is None else f"of step {found.step}"
    report.notes.append(f"starts from the weights {which} of {path}")
    return named_source(model, str(path)), report
