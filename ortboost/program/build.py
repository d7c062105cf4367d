"""The conversion of a model to a training program, one line per stage.

Each stage is a function that can be read and tested alone, and takes what the one before returns:

    ====================  =======================  =================================================
    ``load_model``        ``graph/io.py``          the file, checked
    ``read_network``      ``network.py``           its normal form; boosts that rewrite the network
    ``prepare_forward``   ``forward.py``           loss, training mode, trained parameters
    ``find_blockers``     ``autodiff/check.py``    what the engine cannot differentiate
    ``evaluation_graph``  ``build.py``             ``eval.onnx``
    ``lower_forward``     ``lowered.py``           forward boosts, decomposition, the scaled loss
    ``build_graphs``      ``training_graphs.py``   gradients, gradient boosts, update
    ====================  =======================  =================================================

The first four run for each engine until one has no blockers (``choose_engine.py``).
"""

from __future__ import annotations

import onnx_ir as ir

from ortboost.autodiff.portable.rules.losses import lower_losses
from ortboost.core.arguments import checked
from ortboost.core.collector import without_collector
from ortboost.graph.io import ModelSource
from ortboost.graph.normal_form.guard_draws import guard_draws
from ortboost.graph.normal_form.guard_dropouts import guard_dropouts
from ortboost.graph.normal_form.guard_pads import guard_pads
from ortboost.graph.normal_form.inline_functions import inline_functions
from ortboost.graph.shapes.declared_shapes import restore_read
from ortboost.graph.source import source_name
from ortboost.program.catalogue import merged, stamp
from ortboost.program.choose_engine import choose_engine, refuse_blockers
from ortboost.program.config import ProgramConfig
from ortboost.program.forward import Forward
from ortboost.program.lowered import lift_state, lower_forward
from ortboost.program.names import STEP_GRAPH
from ortboost.program.program import Program
from ortboost.program.training_graphs import build_graphs
from ortboost.transforms.inference_norm import to_inference

__all__ = ["build_program", "evaluation_graph"]


@checked
@without_collector()
def build_program(source: ModelSource, config: ProgramConfig | None = None) -> Program:
    """Convert a model to a training program.

    Args:
        source: Path, :class:`onnx.ModelProto` or :class:`onnx_ir.Model`.
        config: The configuration; the defaults if not given.

    Returns:
        The program, in memory; :meth:`Program.save` writes it.

    Raises:
        ModelError: The model cannot be trained; the error lists all reasons.
        UsageError: A pattern or a name matches nothing.
        DependencyError: The engine cannot run here.
        ConfigError: Boosts exclude each other, or do not fit the model.

    Example:
        >>> build_program("models/mlp.onnx").catalogue.batch[0].name
        'x'
    """
    config = config or ProgramConfig()
    chosen = choose_engine(source, config)
    refuse_blockers(chosen, source, config)
    forward = chosen.forward
    guard_draws(forward.model)  # before the native engine, whose builder merges draws
    evaluation = evaluation_graph(forward)  # before the rewrites that are for training only
    for boost in config.enabled_boosts:
        states = boost.evaluated(forward.trained)  # read in place of parameters
        for value in evaluation.graph.inputs:
            value.name = states.get(value.name or "", value.name)
    lowered = lower_forward(forward, config, chosen.engine)
    graphs = build_graphs(lowered)
    models = {graph.name: graph.model for graph in graphs}
    for model in (*models.values(), evaluation):  # against wrong fusions of onnxruntime
        guard_pads(model)
        guard_dropouts(model)
    # Shared states have the same initial value in all graphs, and those of the first come first.
    initial = {name: x for graph in reversed(graphs) for name, x in graph.initial.items()}
    return Program(
        step=models.pop(STEP_GRAPH),
        variants=models,
        evaluation=evaluation,
        catalogue=merged([graph.catalogue for graph in graphs]),
        initial=initial,
        config=config,
        engine=chosen.engine.name,
        source=source_name(forward.model),
        prediction=forward.loss.prediction,
        reports=tuple(r for r in lowered.reports if r.changed or r.kept or r.notes),
    )


def evaluation_graph(forward: Forward) -> ir.Model:
    """The forward graph in inference mode, with weights as inputs."""
    model = forward.model.clone()
    inline_functions(model)
    to_inference(model)
    # The mean over no labels is 0, as in training, not 0 / 0.
    lower_losses(model, only=lambda node: "ignore_index" in node.attributes)
    lift_state(model, forward)
    restore_read(model)
    stamp(model, "eval")
    return model
