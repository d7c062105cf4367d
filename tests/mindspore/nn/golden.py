"""Read results of MindSpore 2.10 (tests/golden/mindspore), and repeat them with ortboost."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ortboost import nn
from ortboost.mindspore.core.network import Network, load
from ortboost.mindspore.core.tensor import Tensor
from tests.support import GOLDEN, model_path, text_model

FOLDER = GOLDEN / "mindspore"
Arrays = Mapping[str, NDArray[Any]]

_CONVBN = """
<ir_version: 10, opset_import: ["" : 18]>
convbn (float[N,1,8,8] x, float[4,1,3,3] "conv1.weight", float[4] "bn1.weight", float[4] "bn1.bias",
  float[4] "bn1.running_mean", float[4] "bn1.running_var", float[6,4,3,3] "conv2.weight",
  float[6] "conv2.bias", float[6] "bn2.weight", float[6] "bn2.bias", float[6] "bn2.running_mean",
  float[6] "bn2.running_var", float[10,6] "fc.weight", float[10] "fc.bias"
) => (float[N,10] logits) {
  c1 = Conv<kernel_shape = [3, 3], pads = [1, 1, 1, 1]>(x, "conv1.weight")
  n1 = BatchNormalization<epsilon = 0.00001, momentum = 0.9>
       (c1, "bn1.weight", "bn1.bias", "bn1.running_mean", "bn1.running_var")
  r1 = Relu(n1)
  c2 = Conv<kernel_shape = [3, 3], pads = [1, 1, 1, 1], strides = [2, 2]>
       (r1, "conv2.weight", "conv2.bias")
  n2 = BatchNormalization<epsilon = 0.00001, momentum = 0.9>
       (c2, "bn2.weight", "bn2.bias", "bn2.running_mean", "bn2.running_var")
  r2 = Relu(n2)
  p = GlobalAveragePool(r2)
  f = Flatten<axis = 1>(p)
  logits = Gemm<transB = 1>(f, "fc.weight", "fc.bias")
}
"""


def read(name: str) -> dict[str, Any]:
    """One golden file; ``meta`` is parsed."""
    with np.load(FOLDER / f"{name}.npz") as file:
        arrays: dict[str, Any] = {key: file[key] for key in file.files}
    arrays["meta"] = json.loads(str(arrays["meta"]))
    return arrays


def network(name: str) -> Network:
    """``mlp`` or ``convbn`` with the weights that MindSpore started from."""
    with np.load(FOLDER / "data.npz") as file:
        weights = {k.split("/", 1)[1]: file[k] for k in file.files if k.startswith(f"{name}/")}
    if name == "mlp":
        net = load(model_path("mlp"))
        for key, parameter in net.parameters_dict().items():
            parameter.set_data(Tensor(weights[key]))
        return net
    return load(text_model(_CONVBN, **weights))


def batches(name: str, count: int) -> Iterator[tuple[NDArray[Any], NDArray[Any]]]:
    """Images and labels, starting over after the tenth batch."""
    with np.load(FOLDER / "data.npz") as file:
        images, labels = file["x"], file["labels"]
    for step in range(count):
        x = images[step % 10]
        yield (x.reshape(8, 64) if name == "mlp" else x), labels[step % 10]


def optimizer(net: Network, hyper: Mapping[str, Any]) -> nn.Optimizer:
    """The optimizer that ``meta`` describes."""
    options = dict(hyper)
    kind, groups, lars = (
        options.pop("optimizer"),
        options.pop("groups", None),
        options.pop("lars", None),
    )
    params: Any = net.trainable_params()
    if groups:
        by_name = {p.name: p for p in params}
        params = [{**g, "params": [by_name[n] for n in g["params"]]} for g in groups]
    made: nn.Optimizer = getattr(nn, kind)(params, **options)
    return made if lars is None else nn.LARS(made, **lars)


def values(net: Network) -> dict[str, NDArray[Any]]:
    """Copies of all parameters and statistics."""
    return {p.name: p.asnumpy() for p in net.get_parameters()}


def errors(net: Network, layout: list[dict[str, Any]], row: NDArray[Any]) -> dict[str, float]:
    """Largest absolute difference of each tensor to what a stored row holds of it."""
    found = {}
    for entry in layout:
        window = tuple(slice(None, None, stride) for stride in entry["stride"])
        have = net.parameters_dict()[entry["name"]].asnumpy()[window].ravel()
        want = row[entry["offset"] : entry["offset"] + entry["size"]]
        found[entry["name"]] = float(np.abs(have - want).max())
    return found


def shifted_input(shift: NDArray[Any]) -> Network:
    """`y = x + b`, so that the gradient of `b` is that of the loss by the prediction."""
    rows, columns = shift.shape
    return load(
        text_model(
            f"""<ir_version: 10, opset_import: ["" : 18]>
            shifted (float[{rows},{columns}] x, float[{rows},{columns}] b)
            => (float[{rows},{columns}] y) {{ y = Add(x, b) }}""",
            b=shift,
        )
    )
