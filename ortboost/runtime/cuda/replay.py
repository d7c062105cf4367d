"""Steps that are captured as CUDA graphs and replayed.

A step launches hundreds or thousands of kernels; for small networks, and for transformers of usual
size, launching them takes longer than running them. A CUDA graph launches all of them at once. The
shape of a batch is made part of the graph, which is then brought into a form without branches and
copies (:mod:`ortboost.runtime.cuda.capture`) and captured by onnxruntime (``enable_cuda_graph``).

This is done for the first two shapes: usually that of all batches but the last of an epoch, and
that of the last. Both are captured when they first appear, so that a resumed run usually captures
the same shapes, and computes the same bits. Further shapes run normally, on the same state.

Each session keeps the memory of a step. So in large networks, the session for normal steps is
closed when one is captured. A third shape says that lengths vary from batch to batch: the normal
session is opened again, and those of the captured steps are closed.

On an H200 (float32, batch 32, milliseconds; normally, replayed, and PyTorch eager):

    mlp                  0.78   0.27    0.85
    lenet5               2.21   0.52    1.97
    resnet20            13.96   5.25    7.15
    resnet_bottleneck    8.16   2.47    6.53
    mobilenet_like       6.55   2.14    5.03
    transformer_tiny     5.57   1.28    4.82

While capturing, onnxruntime runs a graph more than once. This is harmless only if a step does not
change what it reads, so **every state has two buffers**, and each of the two directions between
them is captured by itself (``gpu_graph_id``). There are only two, whatever graphs run in whatever
order, because each graph also passes on the states that only others write (grad-freeze, THOR).
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from ortboost.core.errors import first_line
from ortboost.graph.normal_form.fold_integers import fold_integers
from ortboost.graph.query import has_subgraph, is_standard, label, static_shape
from ortboost.graph.shapes.shape_inference import infer_shapes
from ortboost.program.catalogue import Catalogue
from ortboost.program.program import Program
from ortboost.runtime.compiled_graph import CompiledGraph
from ortboost.runtime.cuda.capture import capturable, draws
from ortboost.runtime.cuda.forms import for_cuda
from ortboost.runtime.cuda.kernels import Kernels, kernels_of
from ortboost.runtime.cuda.placement import place
from ortboost.runtime.peepholes import for_device
from ortboost.runtime.session import open_session, runtime
from ortboost.runtime.state import DeviceState

__all__ = ["ReplayedGraph", "can_replay", "form_to_capture", "passing_on", "why_not_replayed"]

_STATE: Final = 2**30  # bytes of a state that is not held twice
_LARGE: Final = 2**24  # bytes of a state from which on memory matters more than opening a session
_SHAPES: Final = 2  # that are captured; each has a session with its own memory
_POSITIONS: Final = 2**20  # elements of positions and masks that the lengths of a batch determine
_log = logging.getLogger(__name__)

Shapes = tuple[tuple[str, tuple[int, ...]], ...]


def can_replay(program: Program, device: str) -> bool:
    """Whether the steps of a program may be captured, as far as can be told without a batch."""
    return device == "cuda" and why_not_replayed(program) is None


def why_not_replayed(program: Program) -> str | None:
    """Why no step of a program is captured, whatever the batch; None if they may be."""
    config, state = program.config, program.catalogue.state
    if sum(int(np.prod(entry.shape)) * entry.dtype.itemsize for entry in state) > _STATE:
        return "its state is larger than 1 GiB, and would be held twice"
    if config.accumulator or config.line_search:
        return "the update runs in some steps only, and a captured graph has no branches"
    for model in program.graphs.values():
        if drawn := draws(model):
            return f"random numbers, which each replay would repeat ({label(drawn)})"
        for node in model.graph.all_nodes():
            if node.op_type in ("Loop", "Scan"):
                return f"a {node.op_type} ({label(node)})"
    return None


def passing_on(model: ir.Model, own: Catalogue, whole: Catalogue) -> tuple[ir.Model, Catalogue]:
    """A copy of a graph that also writes the states that only other graphs of its program change.

    ``own`` is the catalogue of the graph, ``whole`` that of the program.
    """
    written = {entry.name for entry in own.state if entry.next is not None}
    passed = [e for e in whole.state if e.next is not None and e.name not in written]
    if not passed:
        return model, own
    model = model.clone()
    inputs = {value.name: value for value in model.graph.inputs}
    for entry in passed:
        value = inputs.get(entry.name)
        if value is None:
            kind = ir.TensorType(ir.DataType.from_numpy(entry.dtype))
            value = ir.Value(name=entry.name, type=kind, shape=ir.Shape(entry.shape))
            model.graph.inputs.append(value)
        copy = ir.node("Identity", [value], name=f"{entry.next}/node")
        copy.outputs[0].name, copy.outputs[0].type = entry.next, value.type
        copy.outputs[0].shape = value.shape
        model.graph.append(copy)
        model.graph.outputs.append(copy.outputs[0])
    names = {entry.name for entry in passed}
    kept = [entry for entry in own.state if entry.name not in names]
    return model, dataclasses.replace(own, state=(*kept, *passed))


def form_to_capture(
    model: ir.Model, shapes: Mapping[str, Sequence[int]], device: str, kernels: Kernels
) -> ir.Model | str:
    """The form of a step that is captured for inputs of these shapes, or why it is not captured.

    The device is ``cuda``, or ``cpu`` for tests; the model is not modified.
    """
    fixed = model.clone()
    for value in fixed.graph.inputs:
        if value.name is not None and value.name in shapes:
            value.shape = ir.Shape(shapes[value.name])
    infer_shapes(fixed)
    while fold_integers(fixed, largest=_POSITIONS).changed:
        infer_shapes(fixed)  # known sizes give shapes, and these other sizes
    form = capturable(fixed)
    form = for_cuda(form, kernels) if device == "cuda" else for_device(form, device)
    infer_shapes(form)
    for value in form.graph.outputs:
        if static_shape(value) is None:
            return f"the shape of '{value.name}' is known at run time only"
    branch = next(filter(has_subgraph, form.graph), None)
    if branch is not None:
        return f"{label(branch)} has branches"
    # GatherND copies from memory of the host that is gone when the copy is replayed (read in the
    # source of onnxruntime 1.31, not tried).
    gather = next((node for node in form.graph if is_standard(node, "GatherND")), None)
    if gather is not None:
        return f"a GatherND ({label(gather)})"
    if device == "cuda":
        placed, copies = place(form, kernels)
        host = [row.node.op_type for row in placed if row.side != "cuda"]
        if host or copies:
            return f"{', '.join(sorted(set(host))) or 'copies of scalars'} on the host"
    return form


class ReplayedGraph:
    """A graph that is captured for the first batch shapes that it runs.

    Args:
        graph: Opens the graph that runs all other steps.
        model: The graph, as in the file.
        catalogue: Its own catalogue.
        state: The state of the program; every state that the graph writes has two buffers. All
            graphs write the same states, see :func:`passing_on`. On a CPU, for tests, the same form
            runs without being captured.
    """

    def __init__(
        self,
        graph: Callable[[], CompiledGraph],
        model: ir.Model,
        catalogue: Catalogue,
        state: DeviceState,
    ) -> None:
        self._open, self._model, self._catalogue, self._state = graph, model, catalogue, state
        self._normal: CompiledGraph | None = graph()  # now: errors of the runtime appear here
        self._captured: dict[Shapes, _Captured | None] = {}

    @property
    def captured(self) -> int:
        """Number of batch shapes that are replayed."""
        return sum(found is not None for found in self._captured.values())

    def run(self, feeds: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """Run once and advance the state; see :meth:`CompiledGraph.run`."""
        shapes = tuple((name, array.shape) for name, array in feeds.items())
        if shapes not in self._captured:
            if len(self._captured) == _SHAPES:
                if self._state.nbytes >= _LARGE:
                    self._captured = dict.fromkeys(self._captured)
                return self._run_normally(feeds)
            if self._state.nbytes >= _LARGE:
                self._normal = None
            self._captured[shapes] = self._capture(feeds)
        found = self._captured[shapes]
        if found is None:
            return self._run_normally(feeds)
        try:
            return found.run(feeds)
        except Exception as error:  # the bindings raise bare exceptions of many kinds
            # Nothing is lost: the state that was read is still there.
            self._captured[shapes] = None
            _log.warning("steps are not captured as CUDA graphs: %s", first_line(error))
        del found  # its memory, before the normal step needs some
        return self._run_normally(feeds)

    def _run_normally(self, feeds: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        if self._normal is None:
            self._normal = self._open()
        return self._normal.run(feeds)

    def _capture(self, feeds: Mapping[str, NDArray[Any]]) -> _Captured | None:
        try:
            shapes = {name: array.shape for name, array in feeds.items()}
            kernels = kernels_of(runtime().__version__)
            form = form_to_capture(self._model, shapes, self._state.device, kernels)
            if isinstance(form, str):
                _log.info("steps are not captured as CUDA graphs: %s", form)
                return None
            return _Captured(form, self._catalogue, self._state, feeds)
        except Exception as error:  # whatever it is, the step runs without capture
            _log.warning("steps are not captured as CUDA graphs: %s", first_line(error))
            return None


class _Captured:
    """The form of a graph for one batch shape, with buffers of its own for all but the state."""

    def __init__(
        self,
        form: ir.Model,
        catalogue: Catalogue,
        state: DeviceState,
        feeds: Mapping[str, NDArray[Any]],
    ) -> None:
        self._catalogue, self._state, device = catalogue, state, state.device
        self._written = [entry.name for entry in catalogue.state if entry.next is not None]
        self._session = open_session(
            form,
            device=device,
            cuda_graph=device == "cuda",
            memory_pattern=False,
            buffer_reuse=False,
            file_order=True,
        )
        inputs = {value.name for value in form.graph.inputs}
        make = runtime().OrtValue
        self._given = {
            name: make.ortvalue_from_numpy(np.array(array, order="C"), device)
            for name, array in feeds.items()
            if name in inputs
        }
        outputs = {value.name: value for value in form.graph.outputs}
        self._results = {}
        for spec in catalogue.outputs:
            value = outputs[spec.name]
            dtype = (value.dtype or ir.DataType.FLOAT).numpy().type
            self._results[spec.name] = make.ortvalue_from_shape_and_type(
                list(static_shape(value) or ()), dtype, device
            )
        self._read = [entry.name for entry in catalogue.state if entry.name in inputs]
        self._bindings: dict[tuple[int, ...], tuple[Any, Any]] = {}

    def run(self, feeds: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        for name, value in self._given.items():
            value.update_inplace(np.ascontiguousarray(feeds[name]))
        self._session.run_with_iobinding(*self._binding())
        results = {name: np.array(value.numpy()) for name, value in self._results.items()}
        self._state.advance(self._written)  # last: the step counts once nothing can fail
        return results

    def _binding(self) -> tuple[Any, Any]:
        phase = self._state.phase(entry.name for entry in self._catalogue.state)
        if phase not in self._bindings:
            binding, options = self._session.io_binding(), runtime().RunOptions()
            options.add_run_config_entry("gpu_graph_id", str(len(self._bindings) + 1))
            for name in self._read:
                binding.bind_ortvalue_input(name, self._state.current(name))
            for name, value in self._given.items():
                binding.bind_ortvalue_input(name, value)
            for name, value in self._results.items():
                binding.bind_ortvalue_output(name, value)
            for entry in self._catalogue.state:
                if entry.next is not None:
                    binding.bind_ortvalue_output(entry.next, self._state.target(entry.name))
            self._bindings[phase] = binding, options
        return self._bindings[phase]
