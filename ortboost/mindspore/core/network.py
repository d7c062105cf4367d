"""``Network``: an ONNX model with the API of MindSpore's cells."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, Literal, TypeAlias

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from ortboost.core.arguments import checked
from ortboost.core.arrays import as_dtype, matches
from ortboost.core.errors import UsageError, first_line
from ortboost.core.shown import Shown
from ortboost.graph.io import ModelSource, load_model, save_model
from ortboost.graph.normalize import normalize
from ortboost.graph.query import all_tensors, format_shape, known_shape
from ortboost.graph.source import source_name
from ortboost.graph.weights.parameters import find_parameters
from ortboost.graph.weights.separate_equals import separate_equals
from ortboost.graph.weights.store_weights import store_weights
from ortboost.graph.weights.tie_copies import tie_copies
from ortboost.graph.weights.token_ids import token_inputs
from ortboost.mindspore.core.arguments import ArgumentTypeError, ArgumentValueError
from ortboost.mindspore.core.cell import Cell
from ortboost.mindspore.core.live_state import LiveState
from ortboost.mindspore.core.parameter import Parameter
from ortboost.mindspore.core.tensor import Tensor, given_array
from ortboost.mindspore.core.traced import Traced, not_one_network_and_loss
from ortboost.program.catalogue import TensorSpec
from ortboost.runtime.feeds import check_token_ids
from ortboost.runtime.session import open_session, runtime
from ortboost.transforms.inference_norm import to_inference
from ortboost.transforms.precision import PrecisionConfig
from ortboost.transforms.trainable_norm import to_training

__all__ = ["Network", "Parameter", "as_input", "check_count", "load"]

EngineName: TypeAlias = Literal["auto", "portable", "native"]
_OPSETS, _IR_VERSION = range(18, 22), 10


class Network(Shown, Cell):
    """A model loaded from ONNX: its parameters, and its forward pass on numpy arrays.

    Calling it always runs the inference graph (running statistics, no dropout), with the latest
    weights. Cells such as ``nn.TrainOneStepCell`` train it.

    Args:
        source: Path of an ``.onnx`` file, an :class:`onnx.ModelProto`, or an
            :class:`onnx_ir.Model`, which is copied.
        device: ``auto``, ``cpu`` or ``cuda``, for the forward pass and the training steps.
        threads: Intra-op threads; the runtime's choice if not given.
        seed: Seed of dropout in the training steps.
        engine: Engine of the gradients of the training steps: ``auto``, ``portable`` or ``native``.

    Raises:
        FileError: The file is missing or damaged.
        ModelError: It cannot be converted to a supported form.

    Example:
        >>> net = load("models/mlp.onnx")
        >>> [parameter.name for parameter in net.trainable_params()]
        ['fc1.weight', 'fc1.bias', 'fc2.weight', 'fc2.bias']
    """

    in_words: ClassVar[str] = "a network loaded with ortboost.load(path)"

    @checked
    def __init__(
        self,
        source: ModelSource,
        *,
        device: str = "auto",
        threads: int | None = None,
        seed: int = 0,
        engine: EngineName = "auto",
    ) -> None:
        super().__init__()
        self.device, self.threads, self.seed, self.engine = device, threads, seed, engine
        self.precision = PrecisionConfig()  # of the training steps; see ortboost.mindspore.amp
        self.model = load_model(source)
        normalize(self.model, opsets=_OPSETS, ir_version=_IR_VERSION)
        separate_equals(self.model)
        store_weights(self.model)
        tie_copies(self.model)
        # To training form and back: training splits running statistics that layers share, and the
        # forward pass must know them by the same names.
        self._forward_model = self.model.clone()
        to_training(self._forward_model)
        to_inference(self._forward_model)
        self._session: Any = None
        self._device_values: dict[str, Any] = {}  # the weights, as OrtValues for the session
        self._device_version = -1  # version of the state that they were copied from
        found = find_parameters(self._forward_model)
        kept = {n: p for n, p in found.items() if p.trainable or p.role.startswith("running_")}
        tensors = {value.name: tensor for value, tensor in all_tensors(self._forward_model)}
        self.state = LiveState({name: np.array(tensors[name].numpy()) for name in kept})
        self._parameters = {
            n: Parameter.of_state(self.state, n, requires_grad=p.trainable, role=p.role)
            for n, p in kept.items()
        }
        inputs = self._forward_model.graph.inputs
        rows = token_inputs(self._forward_model)
        self.inputs: Sequence[TensorSpec] = [
            dataclasses.replace(TensorSpec.of(value), rows=rows.get(value.name or ""))
            for value in inputs
        ]
        self.output_shape = known_shape(self._forward_model.graph.outputs[0])
        """Shape of the (first) output with names for symbolic axes; ``None`` if unknown."""
        self.outputs = [value.name or "" for value in self._forward_model.graph.outputs]

    def __getstate__(self) -> dict[str, Any]:
        """A copy opens its own session."""
        return {**vars(self), "_session": None, "_device_values": {}, "_device_version": -1}

    def _facts(self) -> dict[str, object]:
        trained = self.trainable_params()
        return {
            "of": source_name(self.model),
            "inputs": ", ".join(f"{s.name} {format_shape(s.shape)}" for s in self.inputs),
            "outputs": ", ".join(self.outputs),
            "trained": f"{sum(p.size for p in trained):,} elements in {len(trained)} tensors",
            "device": self.device,
        }

    def get_parameters(self, expand: bool = True) -> Iterator[Parameter]:
        """Iterate over all parameters, including running statistics, in order of their use."""
        return iter(self._parameters.values())

    def construct(self, *inputs: Any) -> Any:
        """Run the forward pass in inference form.

        Args:
            *inputs: One array for each input of the model, in order.

        Returns:
            The output as a :class:`ortboost.Tensor`, or a tuple of them.

        Raises:
            ArgumentTypeError: The number of inputs or a dtype does not fit.
            ArgumentValueError: A shape does not fit.
        """
        check_count("network call", self, inputs)
        given = zip(self.inputs, inputs, strict=True)
        feeds = {spec.name: as_input(value, spec) for spec, value in given}
        outputs = tuple(Tensor(array) for array in self._run(feeds))
        return outputs if len(outputs) != 1 else outputs[0]

    def traced(self, *inputs: Any) -> Traced:
        """The traced output."""
        if len(self.outputs) != 1:
            found = f"the network has {len(self.outputs)} outputs, but a loss needs one"
            raise not_one_network_and_loss(inputs[0].owner, found)
        return Traced(inputs[0].owner, self, inputs)

    def _run(self, feeds: Mapping[str, NDArray[Any]]) -> list[NDArray[Any]]:
        if self._session is None:
            model = _with_weight_inputs(self._forward_model, self._parameters)
            self._session = open_session(model, device=self.device, threads=self.threads)
        if self._device_version != self.state.version:
            cuda = "CUDAExecutionProvider" in self._session.get_providers()
            place = runtime().OrtValue.ortvalue_from_numpy
            wanted = {value.name for value in self._session.get_inputs()}
            self._device_values = {
                name: place(np.array(value, order="C"), "cuda" if cuda else "cpu")
                for name, value in self.state.values().items()
                if name in wanted
            }
            self._device_version = self.state.version  # last: the device may lack memory
        binding = self._session.io_binding()
        for name, value in self._device_values.items():
            binding.bind_ortvalue_input(name, value)
        for name, array in feeds.items():
            binding.bind_cpu_input(name, array)
        for name in self.outputs:
            binding.bind_output(name, "cpu")
        try:
            self._session.run_with_iobinding(binding)
        except Exception as error:  # the bindings raise bare exceptions of many kinds
            raise UsageError(
                "onnxruntime could not run the network on these arrays.",
                where=first_line(error),
                fix="Check that their shapes fit the model.",
            ) from error
        return [value.numpy() for value in binding.get_outputs()]

    def to_model(self) -> ir.Model:
        """Make a new model of the inference graph with the current weights."""
        model = self._forward_model.clone()
        for name, array in self.state.values().items():
            if name in model.graph.initializers:
                model.graph.initializers[name].const_value = ir.tensor(np.array(array), name=name)
        return model

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the inference graph with the current weights, atomically.

        Raises:
            FileError: It cannot be written.
        """
        save_model(self.to_model(), path)


@checked
def load(
    source: ModelSource,
    *,
    device: str = "auto",
    threads: int | None = None,
    seed: int = 0,
    engine: EngineName = "auto",
) -> Network:
    """Load a network from ONNX; see :class:`Network` for the arguments.

    Example:
        >>> net = load("models/mlp.onnx")
        >>> net(np.zeros([2, 64], np.float32)).shape
        (2, 10)
    """
    return Network(source, device=device, threads=threads, seed=seed, engine=engine)


def check_count(where: str, network: Network, inputs: Sequence[Any], *more: str) -> None:
    """Check the number of arguments: one for each input of a network, and ``more`` after them."""
    wanted = [*(spec.name for spec in network.inputs), *more]
    if len(inputs) != len(wanted):
        raise ArgumentTypeError(
            f"{len(wanted)} arguments are needed, but {len(inputs)} were given.",
            where=where,
            fix=f"Give {', '.join(wanted)}.",
        )


def as_input(value: Any, spec: TensorSpec) -> NDArray[Any]:
    """Convert an array to the dtype of a graph input, after checking that it fits."""
    array = given_array("network call", spec.name, value)
    if array.dtype.kind == "f" and spec.dtype.kind != "f":
        raise ArgumentTypeError(
            f"The input '{spec.name}' got {array.dtype}, but needs {spec.dtype}.",
            where=f"input '{spec.name}'",
            fix=f"Give an array of {spec.dtype}.",
        )
    if not matches(array.shape, spec.shape):
        raise ArgumentValueError(
            f"The input '{spec.name}' got the shape {list(array.shape)}.",
            where=f"input '{spec.name}'",
            fix=f"Give an array of the shape [{', '.join(str(d) for d in spec.shape)}].",
        )
    check_token_ids(array, spec)
    return np.asarray(as_dtype(array, spec.dtype, f"input '{spec.name}'"), order="C")


def _with_weight_inputs(model: ir.Model, parameters: Mapping[str, Parameter]) -> ir.Model:
    """Copy a model, with its parameters as graph inputs."""
    copy = model.clone()
    for name, parameter in parameters.items():
        value = copy.graph.initializers.pop(name, None)
        if value is not None:
            value.const_value = None
            value.type = ir.TensorType(ir.DataType.from_numpy(parameter.dtype))
            value.shape = ir.Shape(parameter.shape)
            copy.graph.inputs.append(value)
    return copy
