"""Placeholders with which a user's ``construct`` is called to trace what it computes.

A cell that calls one network and one loss is trained as one graph. Placeholders support nothing
else: other computations belong in the ONNX file, and raise an error that names them.
"""

from __future__ import annotations

from typing import Any, Final, NoReturn

from ortboost.mindspore.core.arguments import NotInThisVersionError

__all__ = ["Traced", "not_one_network_and_loss"]


class Traced:
    """A placeholder for a value in the ``construct`` of the cell ``owner``.

    ``cell`` is the network or loss that returned it, and ``inputs`` the arguments of that call;
    ``None`` for an argument of ``construct``.
    """

    def __init__(self, owner: str, cell: Any = None, inputs: tuple[Any, ...] = ()) -> None:
        self.owner, self.cell, self.inputs = owner, cell, inputs

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__") or name == "_repr_html_":
            raise AttributeError(name)  # looked up in every object
        raise not_one_network_and_loss(self.owner, f"'.{name}' of a tensor")


def not_one_network_and_loss(owner: str, found: str) -> NotInThisVersionError:
    """Make the error for a cell that does something else."""
    return NotInThisVersionError(
        f"'{owner}' does more than calling one network and one loss: {found}.",
        where=f"{owner}.construct",
        fix="Export that part with the network; a cell can only be loss_fn(network(data), label).",
    )


_ONE_SIDED: Final = """neg pos abs invert lt le gt ge eq ne getitem setitem len iter bool float int
array array_ufunc"""
_TWO_SIDED: Final = "add sub mul truediv floordiv mod pow matmul and or xor"


def _refusing(name: str) -> Any:
    def refuse(self: Traced, *args: Any, **kwargs: Any) -> NoReturn:
        raise not_one_network_and_loss(self.owner, f"'__{name}__' of a tensor")

    return refuse


# Python looks operators up in the class, without __getattr__.
for _name in (*_ONE_SIDED.split(), *_TWO_SIDED.split(), *(f"r{n}" for n in _TWO_SIDED.split())):
    setattr(Traced, f"__{_name}__", _refusing(_name))
Traced.__hash__ = object.__hash__  # type: ignore[method-assign]  # removed by __eq__
