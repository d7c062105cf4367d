"""Save and load weights with MindSpore's API; the files are safetensors.

They contain weights and running statistics. To resume a training run exactly, use the trainer
(``ortboost train --resume``), whose checkpoints also contain slots, counters and the data position.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from safetensors.numpy import save_file

from ortboost.core.arguments import checked
from ortboost.core.errors import FileError
from ortboost.core.files import atomic_path
from ortboost.mindspore.core.arguments import (
    ArgumentTypeError,
    ArgumentValueError,
    refuse_given,
)
from ortboost.mindspore.core.cell import Cell
from ortboost.mindspore.core.parameter import Parameter
from ortboost.mindspore.core.tensor import Tensor
from ortboost.program.state_file import read_tensors

__all__ = ["load_checkpoint", "load_param_into_net", "save_checkpoint"]

_Prefixes: TypeAlias = str | Sequence[str] | None


@checked
def save_checkpoint(
    save_obj: Any,
    ckpt_file_name: str | os.PathLike[str],
    integrated_save: bool = True,
    async_save: bool | str = False,
    append_dict: Mapping[str, Any] | None = None,
    enc_key: bytes | None = None,
    enc_mode: str = "AES-GCM",
    choice_func: Callable[[str], bool] | None = None,
    crc_check: bool = False,
    format: str = "ckpt",
) -> Path:
    """Write parameters to a safetensors file, atomically.

    Args:
        save_obj: A cell, a dict from name to Parameter, or a list of Parameters
            (``net.trainable_params()``) or of dicts with ``name`` and ``data`` (a Parameter or
            Tensor).
        ckpt_file_name: The file; the suffix ``.safetensors`` is added if missing.
        integrated_save: Accepted without effect: every process has all values.
        async_save: Accepted without effect: the file is complete when the function returns.
        append_dict: More values to save by name: numbers, Tensors or Parameters.
        enc_key: Must be ``None``; files are not encrypted in this version.
        enc_mode: Accepted without effect.
        choice_func: Whether to save the parameter of a name; all if not given.
        crc_check: Must be False.
        format: Accepted without effect: files are safetensors.

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
    refuse_given("save_checkpoint", enc_key=enc_key, crc_check=crc_check)
    kind = type(save_obj).__name__
    if isinstance(save_obj, Cell):
        save_obj = save_obj.parameters_dict()
    elif isinstance(save_obj, list):
        save_obj = dict(_entry(item) for item in save_obj)
    parameters = save_obj.values() if isinstance(save_obj, Mapping) else [None]
    if not all(isinstance(parameter, Parameter | Tensor) for parameter in parameters):
        raise ArgumentTypeError(
            f"'save_obj' is {kind}.",
            where="save_checkpoint",
            fix="Give a network, a dict from name to Parameter, or a list of Parameters or dicts "
            "with name and data.",
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
    filter_prefix: _Prefixes = None,
    dec_key: bytes | None = None,
    dec_mode: str = "AES-GCM",
    specify_prefix: _Prefixes = None,
    choice_func: Callable[[str], bool] | None = None,
    crc_check: bool = False,
    remove_redundancy: bool = False,
    format: str = "ckpt",
) -> dict[str, Parameter]:
    """Read parameters from a safetensors file.

    Args:
        ckpt_file_name: The file, as it was given to :func:`save_checkpoint`, or its full name.
        net: If given, load the values into it.
        strict_load: See :func:`load_param_into_net`.
        filter_prefix: Do not read parameters whose names start with it, or with one of a list.
        dec_key: Must be ``None``; files are not encrypted in this version.
        dec_mode: Accepted without effect.
        specify_prefix: Read only parameters whose names start with it, or with one of a list.
        choice_func: Whether to read the parameter of a name; all if not given. Unused with a
            prefix, as in MindSpore.
        crc_check: Must be False.
        remove_redundancy: Must be False.
        format: Accepted without effect: files are safetensors.

    Raises:
        ArgumentValueError: A prefix is empty, or nothing is left to read.
        FileError: The file is missing or damaged.

    Example:
        >>> import ortboost as ob
        >>> file = ob.save_checkpoint(ob.load("models/mlp.onnx"), "mlp")
        >>> ob.load_checkpoint(file)["fc2.bias"].shape
        (10,)
    """
    owner = "load_checkpoint"
    refuse_given(owner, dec_key=dec_key, crc_check=crc_check, remove_redundancy=remove_redundancy)
    chosen = _chosen_by_prefix(owner, specify_prefix, filter_prefix) or choice_func
    saved = _with_suffix(ckpt_file_name)
    try:
        tensors = read_tensors(saved if saved.exists() else ckpt_file_name)
    except FileError as error:
        raise FileError(
            "The checkpoint cannot be read.",
            where=error.where,
            fix="Give a safetensors file; MindSpore writes one with save_checkpoint(net, name, "
            "format='safetensors').",
        ) from error
    loaded = {
        name: Parameter(array, name=name)
        for name, array in tensors.items()
        if chosen is None or chosen(name)
    }
    if not loaded:
        raise ArgumentValueError(
            "There is nothing to read.",
            where=f"{owner}, {ckpt_file_name}",
            fix=f"The file has {', '.join(list(tensors)[:5])}, ...: choose some of these."
            if tensors
            else "Give a file with parameters.",
        )
    if net is not None:
        load_param_into_net(net, loaded, strict_load)
    return loaded


@checked
def load_param_into_net(
    net: Cell,
    parameter_dict: Mapping[str, Any],
    strict_load: bool = False,
    remove_redundancy: bool = False,
) -> tuple[Sequence[str], Sequence[str]]:
    """Load values into a network, by name.

    Args:
        net: The network.
        parameter_dict: From :func:`load_checkpoint`, also MindSpore's; or arrays by name.
        strict_load: Raise if a parameter of the network is missing.
        remove_redundancy: Must be False.

    Returns:
        The parameters of the network that got no value (a warning lists them), and the given names
        that the network does not have.

    Raises:
        ArgumentTypeError: An argument is not a network, or not a dict of parameters.
        ArgumentValueError: A shape differs, or with ``strict_load`` a parameter is missing.

    Example:
        >>> import ortboost as ob
        >>> net = ob.load("models/mlp.onnx")
        >>> load_param_into_net(net, ob.load_checkpoint(ob.save_checkpoint(net, "mlp")))
        ([], [])
    """
    refuse_given("load_param_into_net", remove_redundancy=remove_redundancy)
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


def _chosen_by_prefix(
    owner: str, wanted: _Prefixes, unwanted: _Prefixes
) -> Callable[[str], bool] | None:
    """Whether to read the parameter of a name; ``None`` without prefixes."""
    if wanted is None and unwanted is None:
        return None
    given = [[p] if isinstance(p, str) else p for p in (wanted, unwanted)]
    if any(p is not None and ("" in p or not p) for p in given):
        raise ArgumentValueError(
            "A prefix is empty.", where=owner, fix="Leave it out to read every parameter."
        )
    starts, others = (tuple(p or ()) for p in given)
    return lambda name: name.startswith(starts or "") and not name.startswith(others)


def _entry(item: Any) -> tuple[str, Any]:
    """Name and value of an element of a list; the value is ``None`` if there is none."""
    if isinstance(item, Parameter):
        return item.name, item
    if isinstance(item, Mapping) and isinstance(item.get("name"), str):
        return item["name"], item.get("data")
    return "", None


def _with_suffix(name: str | os.PathLike[str]) -> Path:
    path = Path(name)
    return path if path.suffix == ".safetensors" else Path(f"{path}.safetensors")
