"""``Cell``: the base class of networks, losses, optimizers and training steps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from ortboost.core.arguments import checked
from ortboost.mindspore.core.arguments import NotInThisVersionError
from ortboost.mindspore.core.parameter import Parameter
from ortboost.mindspore.core.traced import Traced

__all__ = ["Cell", "has_own_construct", "refuse_own_methods"]

_COMPUTING: Final = (
    "construct",
    "decay_weight",
    "get_loss",
    "get_lr",
    "get_weight_decay",
    "gradients_centralization",
    "scale_grad",
)
_GRADIENTS: Final = (
    "Call super().construct(data, label) for the whole step, which is one graph. To clip "
    "gradients, train a program with the boost Clip('global-norm', 1.0)."
)
_LAYERS: Final = "Layers are nodes of the ONNX file; net.get_parameters() has their weights."
_ELSEWHERE: Final = {
    **dict.fromkeys(("grad", "grad_no_sens", "grad_reducer", "hyper_map", "weights"), _GRADIENTS),
    **dict.fromkeys(
        ("get_overflow_status", "process_loss_scale", "start_overflow_check"), _GRADIENTS
    ),
    **dict.fromkeys(("cells_and_names", "insert_child_to_cell", "name_cells"), _LAYERS),
    "recompute": "Train a program with the boost Recompute().",
    "to_float": "Use amp.auto_mixed_precision(net, 'O3').",
}


class _NoAttributeError(NotInThisVersionError, AttributeError):
    """An attribute that MindSpore's cells have, but those here do not."""


class Cell:
    """Base class of callables, with the parameter methods of MindSpore's ``Cell``.

    The parameters of a cell are those of the cells among its attributes. :func:`ortboost.load`
    makes networks from ONNX files; a subclass that computes in Python runs on the host, and can be
    trained if its ``construct`` is ``loss_fn(network(data), label)``.

    Args:
        auto_prefix: Accepted without effect: parameters have the names of the ONNX file.
        flags: Accepted without effect.
    """

    def __init__(self, auto_prefix: bool = True, flags: Mapping[str, Any] | None = None) -> None:
        self.training = False

    def __getattr__(self, name: str) -> Any:
        if name in _ELSEWHERE:
            own = type(self).__name__
            raise _NoAttributeError(
                f"'{own}' has no '{name}' here.", where=f"{own}.{name}", fix=_ELSEWHERE[name]
            )
        return super().__getattribute__(name)  # again, for the error of Python or of a property

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run :meth:`construct`."""
        if any(isinstance(value, Traced) for value in (*args, *kwargs.values())):
            return self.traced(*args, **kwargs)
        return self.construct(*args, **kwargs)

    def traced(self, *args: Any, **kwargs: Any) -> Any:
        """Handle a call with traced values; see :mod:`ortboost.mindspore.core.traced`."""
        return self.construct(*args, **kwargs)

    def construct(self, *args: Any, **kwargs: Any) -> Any:
        """Compute the result of the cell; defined by subclasses."""
        raise NotInThisVersionError(
            f"'{type(self).__name__}' has no construct method.",
            where=type(self).__name__,
            fix="Networks come from ONNX files here: ortboost.load(path).",
        )

    def cells(self) -> Iterator[Cell]:
        """Iterate over the cells among the attributes, each once."""
        yield from {id(v): v for v in vars(self).values() if isinstance(v, Cell)}.values()

    def get_parameters(self, expand: bool = True) -> Iterator[Parameter]:
        """Iterate over all parameters, including running statistics, each once.

        Args:
            expand: Whether to include those of inner cells.
        """
        cells = self.cells() if expand else ()
        yield from {id(p): p for cell in cells for p in cell.get_parameters()}.values()

    def trainable_params(self, recurse: bool = True) -> list[Parameter]:
        """The parameters with ``requires_grad``, as a list for an optimizer."""
        return [p for p in self.get_parameters(recurse) if p.requires_grad]

    def untrainable_params(self, recurse: bool = True) -> list[Parameter]:
        """The parameters without ``requires_grad``: running statistics and frozen ones."""
        return [p for p in self.get_parameters(recurse) if not p.requires_grad]

    def parameters_dict(self, recurse: bool = True) -> dict[str, Parameter]:
        """The parameters by name."""
        return {p.name: p for p in self.get_parameters(recurse)}

    def parameters_and_names(
        self, name_prefix: str = "", expand: bool = True
    ) -> Iterator[tuple[str, Parameter]]:
        """Iterate over pairs of name and parameter; ``name_prefix`` and a dot precede each name."""
        prefix = f"{name_prefix}." if name_prefix else ""
        for parameter in self.get_parameters(expand):
            yield prefix + parameter.name, parameter

    @checked
    def set_train(self, mode: bool = True) -> Cell:
        """Set the training flag.

        It does not affect results: a training step always runs the training graph, and a forward
        call always the inference graph.

        Returns:
            The cell itself.
        """
        self.training = mode
        for cell in self.cells():
            cell.set_train(mode)
        return self

    @checked
    def set_grad(self, requires_grad: bool = True) -> Cell:
        """Accepted for compatibility; a training step differentiates as needed.

        Returns:
            The cell itself.
        """
        return self


def has_own_construct(cell: Cell) -> bool:
    """Whether a user's subclass overrides ``construct``."""
    return _is_own(cell, "construct")


def refuse_own_methods(owner: str, cell: Cell | None, names: Sequence[str] = _COMPUTING) -> None:
    """Refuse a user's subclass with a method that MindSpore calls, but a step graph does not.

    Args:
        owner: Name of the training cell, for errors.
        cell: A network, loss, optimizer or update cell.
        names: The methods.

    Raises:
        NotInThisVersionError: It has one.
    """
    found = next((name for name in names if _is_own(cell, name)), None)
    if found is not None:
        own = type(cell)
        kind = next(k for k in own.__mro__ if k.__module__.startswith("ortboost."))
        wanted = vars(kind).get("in_words", kind.__name__)
        raise NotInThisVersionError(
            f"'{own.__name__}' has its own {found}, but a training step is a graph and does not "
            "call it.",
            where=f"{owner}, {own.__name__}.{found}",
            fix=f"Use {wanted}; other computations belong in the ONNX file.",
        )


def _is_own(cell: Cell | None, method: str) -> bool:
    module = getattr(getattr(cell, method, None), "__module__", None) or "ortboost."
    return not module.startswith("ortboost.")
