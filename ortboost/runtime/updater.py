"""The update of a step alone, with gradients that were computed elsewhere.

The step graph is cut at its gradients: what remains is the window of accumulation, the boosts and
the optimizer, exactly as in a step. Forward and backward pass, loss and running statistics are not
part of it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from ortboost.autodiff.engine import gradient_name
from ortboost.core.errors import ConfigError
from ortboost.program import names
from ortboost.program.catalogue import Catalogue, TensorSpec, merged, read_catalogue
from ortboost.program.program import Program
from ortboost.program.split import slice_step
from ortboost.runtime.compiled_graph import CompiledGraph, own_catalogue
from ortboost.runtime.feeds import check_rates
from ortboost.runtime.session import training_device
from ortboost.runtime.state import DeviceState

__all__ = ["Updater"]


class Updater:
    """Updates the state of a program that accumulates gradients with gradients of the caller.

    Args:
        program: A program with one step graph, with gradient accumulation, and without loss scale
            and finite check (the gate of the check encloses the running statistics, too).
        device: ``auto``, ``cpu`` or ``cuda``.
        threads: Intra-op threads; the runtime's choice if not given.

    Raises:
        ConfigError: A boost reads more than the gradients, or updates parameters in turns.

    Example:
        >>> updater = Updater(program, device="cpu", threads=None)          # doctest: +SKIP
        >>> updater.step({"fc1.weight": gradient}, {"learning_rate": 0.1})  # doctest: +SKIP
    """

    def __init__(self, program: Program, *, device: str, threads: int | None) -> None:
        _require_one_step(program)
        update = _sliced(program)
        flush = program.graphs[names.FLUSH_GRAPH]
        graphs = [(update, _catalogue(update, program)), (flush, read_catalogue(flush))]
        self._groups = [spec.name for spec in program.catalogue.hyper]
        self.catalogue = merged([catalogue for _, catalogue in graphs])
        initial = {entry.name: program.initial[entry.name] for entry in self.catalogue.state}
        self._state = DeviceState(self.catalogue, initial, training_device(device), ())
        self._update, self._flush = (
            CompiledGraph(model, catalogue, self._state, threads=threads)
            for model, catalogue in graphs
        )

    def step(self, gradients: Mapping[str, NDArray[Any]], hyper: Mapping[str, float]) -> None:
        """Add gradients, by parameter, to the window; at its end, update.

        Raises:
            UsageError: See :func:`ortboost.runtime.feeds.check_rates`.
        """
        feeds = {gradient_name(name): np.asarray(g, order="C") for name, g in gradients.items()}
        self._update.run({**feeds, **self._rates(self._update.catalogue, hyper)})

    def flush(self, hyper: Mapping[str, float]) -> bool:
        """Apply an incomplete window; False if there is none."""
        if not self.get(names.MICRO_STEPS):
            return False
        self._flush.run(self._rates(self._flush.catalogue, hyper))
        return True

    def _rates(self, catalogue: Catalogue, hyper: Mapping[str, float]) -> dict[str, NDArray[Any]]:
        rates = check_rates(hyper, self._groups)
        return {spec.name: rates[spec.name] for spec in catalogue.hyper}

    def get(self, name: str) -> NDArray[Any]:
        """Copy one state tensor to the host."""
        return self._state.read(name)

    def set(self, name: str, value: NDArray[Any]) -> None:
        """Replace one state tensor."""
        self._state.write(name, value)


def _require_one_step(program: Program) -> None:
    steps = [name for name in program.graphs if name.partition(".")[0] == names.STEP_GRAPH]
    if len(steps) > 1:
        raise ConfigError(
            "The program has several step graphs, and gradients alone do not say which one to run.",
            where=", ".join(steps),
            fix="Train without gradient freeze and THOR, or call the training cell itself.",
        )


def _sliced(program: Program) -> ir.Model:
    """The nodes that compute the next states from the gradients, except running statistics."""
    # Without a finite check nothing else needs the forward pass: the slice ends at the gradients.
    entries = [e for e in program.catalogue.state if e.next is not None and e.kind != "buffer"]
    gradients = [gradient_name(entry.name) for entry in entries if entry.kind == "parameter"]
    return slice_step(program.step, [e.next for e in entries if e.next], gradients)


def _catalogue(update: ir.Model, program: Program) -> Catalogue:
    """The catalogue of the sliced graph."""
    own = own_catalogue(program.catalogue, update.graph)
    inputs = {value.name or "": value for value in update.graph.inputs}
    gradients = [gradient_name(entry.name) for entry in own.state if entry.kind == "parameter"]
    known = {*gradients, *(spec.name for spec in own.hyper), *(e.name for e in own.state)}
    other = next((name for name in inputs if name not in known), None)
    if other is not None:
        raise ConfigError(
            "The update reads more than the gradients.",
            where=f"tensor '{other}'",
            fix="Use an optimizer and boosts that only read gradients.",
        )
    batch = tuple(TensorSpec.of(inputs[name]) for name in gradients if name in inputs)
    return dataclasses.replace(own, batch=batch, outputs=())
