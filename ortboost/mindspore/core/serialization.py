"""Save and load weights with MindSpore's API; the files are safetensors.

They contain weights and running statistics. To resume a training run exactly, use the trainer
(``ortboost train --resume``), whose checkpoints also contain slots, counters and the data position.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from ortboost.core.arguments import checked
from ortboost.core.files import atomic_path
from ortboost.mindspore.core.arguments import ArgumentTypeError, ArgumentValueError
from ortboost.mindspore.core.cell import Cell
from ortboost.mindspore.core.parameter import Parameter
from ortboost.mindspore.core.tensor import Tensor
from ortboost.program.state_file import read_tensors

__all__ = ["load_checkpoint", "load_param_into_net", "save_checkpoint"]


@checked
def save_checkpoint(
    save_obj: Any,
    ckpt_file_name: str | os.PathLike[str],
    *,
    append_dict: Mapping[str, Any] | None = None,
    choice_func: Callable[[str], bool] | None = None,
) -> Path:
    """Write parameters to a safetensors file, atomically.

    Args:
        save_obj: A cell, a dict from name to Parameter, or a list of dicts with ``name`` and
            ``data`` (a Parameter or Tensor).
        ckpt_file_name: The file; the suffix ``.safetensors`` is added if missing.
        append_dict: More values to save by name: numbers, Tensors or Parameters.
        choice_func: Whether to save the parameter of a name; all if not given.

    Returns:
        The path written.

    Raises:
        ArgumentTypeError: The object cannot be saved.
        FileError: The file cannot be written.

    Example:
        >>> import ortboost as ob
        >>> ob.save_checkpoint(ob.load("models/mlp.onnx"), "mlp").name
        'mlp.safetensors'
    """
    kind = type(save_obj).__name__
    if isinstance(save_obj, Cell):
        save_obj = save_obj.parameters_dict()
    elif isinstance(save_obj, list) and all(_is_entry(item) for item in save_obj):
        save_obj = {item["name"]: item["data"] for item in save_obj}
    parameters = save_obj.values() if isinstance(save_obj, Mapping) else [None]
    if not all(isinstance(parameter, Parameter | Tensor) for parameter in parameters):
        raise ArgumentTypeError(
            f"'save_obj' is {kind}.",
            where="save_checkpoint",
            fix="Give a network, a dict from name to Parameter, or a list of dicts with name and "
            "data.",
        )
    if not Path(ckpt_file_name).name:
        raise ArgumentValueError(
            "The file has no name.", where="save_checkpoint", fix="Give one: net.safetensors."
        )
    values = {str(n): p for n, p in save_obj.items() if choice_func is None or choice_func(n)}
    values |= {name: Tensor(value) for name, value in (append_dict or {}).items()}
    path = _with_suffix(ckpt_file_name)
    with atomic_path(path) as temporary:
        save_file({n: np.array(v, order="C") for n, v in values.items()}, temporary)
    return path


@checked
def load_checkpoint(
    ckpt_file_name: str | os.PathLike[str],
    net: Cell | None = None,
    strict_load: bool = False,
    *,
    choice_func: Callable[[str], bool] | None = None,
) -> dict[str, Parameter]:
    """Read parameters from a safetensors file.

    Args:
        ckpt_file_name: The file, as it was given to :func:`save_checkpoint`, or its full name.
        net: If given, load the values into it.
        strict_load: See :func:`load_param_into_net`.
        choice_func: Whether to read the parameter of a name; all if not given.

    Raises:
        FileError: The file is missing or damaged.

    Example:
        >>> import ortboost as ob
        >>> file = ob.save_checkpoint(ob.load("models/mlp.onnx"), "mlp")
        >>> ob.load_checkpoint(file)["fc2.bias"].shape
        (10,)
    """
    saved = _with_suffix(ckpt_file_name)
    tensors = read_tensors(saved if saved.exists() else ckpt_file_name)
    loaded = {
        name: Parameter(array, name=name)
        for name, array in tensors.items()
        if choice_func is None or choice_func(name)
    }
    if net is not None:
        load_param_into_net(net, loaded, strict_load)
    return loaded


@checked
def load_param_into_net(
    net: Cell, parameter_dict: Mapping[str, Parameter], strict_load: bool = False
) -> tuple[Sequence[str], Sequence[str]]:
    """Load values into a network, by name.

    Args:
        net: The network.
        parameter_dict: From :func:`load_checkpoint`.
        strict_load: Raise if a parameter of the network is missing.

    Returns:
        Parameter names of the network without a value, of which a warning tells, and given names
        unknown to the network.

    Raises:
        ArgumentTypeError: An argument is not a network, or not a dict of parameters.
        ArgumentValueError: A shape differs, or with ``strict_load`` a parameter is missing.

    Example:
        >>> import ortboost as ob
        >>> net = ob.load("models/mlp.onnx")
        >>> load_param_into_net(net, ob.load_checkpoint(ob.save_checkpoint(net, "mlp")))
        ([], [])
    """
    own = net.parameters_dict()
    missing = [name for name in own if name not in parameter_dict]
    if missing and strict_load:
        raise ArgumentValueError(
            f"There is no value for '{missing[0]}'.",
            where="load_param_into_net",
            fix="Use the checkpoint of this network, or strict_load=False.",
        )
    # All are checked before the first is written.
    found = {n: own[n].converted(parameter_dict[n]) for n in own if n in parameter_dict}
    for name, value in found.items():
        own[name].set_data(value)
    if missing:
        warnings.warn(
            f"{len(missing)} parameters of the network have no value in 'parameter_dict' and were "
            f"not loaded, for example '{missing[0]}'",
            stacklevel=3,
        )
    return missing, [name for name in parameter_dict if name not in own]


def _is_entry(item: Any) -> bool:
    return isinstance(item, Mapping) and isinstance(item.get("name"), str) and "data" in item


def _with_suffix(name: str | os.PathLike[str]) -> Path:
    path = Path(name)
    return path if path.suffix == ".safetensors" else Path(f"{path}.safetensors")
