"""One process against several with BatchNormalization over all; started by torchrun."""

from __future__ import annotations

import dataclasses
import io
import json
import sys

import numpy as np
import onnx
import onnx_ir as ir
import torch

from ortboost.boosts import (
    Clip,
    GradAccumulation,
    GradFreeze,
    GroupLossScale,
    LessBN,
    MixedPrecision,
    Recompute,
    SyncBatchNorm,
    Thor,
)
from ortboost.core.loss_scale import GroupedScaleConfig
from ortboost.optimizers import Adam, Sgd
from ortboost.program.build import build_program
from ortboost.runtime.process_group import ProcessGroup
from ortboost.runtime.stepper import Stepper
from ortboost.transforms.loss_config import LossConfig
from tests.parallel.steps import (
    LOW,
    SMALL,
    Case,
    batch_of,
    compared,
    part_of,
    program,
    short,
    smooth,
    spoiled,
    uncounted,
)
from tests.program.test_combine import network
from tests.support import text_model, weights


def resnet() -> ir.Model:
    return smooth("resnet20")


def varying() -> ir.Model:
    """The indices of positive values, of another length at each step, pass between segments."""
    return text_model(
        """<ir_version: 10, opset_import: ["" : 18]>
        net (float[batch,10] x, float[8,10] w, float[8] s, float[8] b, float[8] m, float[8] v,
             float[3,8] fw) => (float[batch,3] logits) {
          [fc] h = Gemm<transB = 1>(x, w)
          shape = Shape(h)
          flat_shape = Constant<value_ints = [-1]>()
          flat = Reshape(h, flat_shape)
          zero = Constant<value_float = 0.0>()
          positive = Greater(flat, zero)
          found = NonZero(positive)
          places = Reshape(found, flat_shape)
          kept = Gather(flat, places)
          nothing = Mul(flat, zero)
          spread = ScatterElements<axis = 0>(nothing, places, kept)
          back = Reshape(spread, shape)
          sum = Add(h, back)
          [bn] n = BatchNormalization(sum, s, b, m, v)
          [relu] r = Relu(n)
          [out] logits = Gemm<transB = 1>(r, fw)
        }""",
        w=weights(8, 10),
        s=1 + weights(8, seed=1, scale=0.1),
        b=weights(8, seed=2),
        m=weights(8, seed=3),
        v=1 + np.abs(weights(8, seed=4)),
        fw=weights(3, 8, seed=5),
    )


def synced(*boosts, **settings):
    return program(boosts=(SyncBatchNorm(), *boosts), **settings)


CASES = {
    # From the same state at each step: where the input is 1e-6 larger, ten steps of one process end
    # 0.1 away.
    "resnet20": Case(resnet, synced(), short, steps=3, rate=0.01, together=True),
    "adam": Case(network, synced(optimizer=Adam()), short, rate=0.002),
    "sum": Case(network, synced(loss=LossConfig(reduction="sum")), short, rate=0.002),
    "uncounted labels": Case(network, synced(loss=LossConfig(ignore_index=-1)), uncounted),
    "overflow": Case(network, synced(loss_scale=SMALL), spoiled),
    "sizes vary": Case(varying, synced()),
    "less-bn": Case(network, synced(LessBN())),
    "clip": Case(network, synced(Clip("global-norm", 0.3)), short),
    "accumulated": Case(network, synced(GradAccumulation(3)), short, flush=True),
    "frozen": Case(network, synced(GradFreeze(groups=3, steps=10, p=0.6))),
    "grouped": Case(
        network, synced(GroupLossScale(GroupedScaleConfig(init_scale=256.0, groups=3))), spoiled
    ),
    "recomputed": Case(network, synced(Recompute(every="block")), short),
    "mixed precision": Case(
        network, synced(MixedPrecision("fp16"), loss_scale=LOW), rate=0.002, together=True
    ),
    "thor, uncounted labels": Case(
        network,
        synced(Thor(frequency=2, damping=0.3), loss=LossConfig(ignore_index=-1)),
        uncounted,
        rate=0.005,
    ),
}
LONG = ("resnet20",)
"""Cases for two processes only."""


class Net(torch.nn.Module):
    """Two convolutions beside each other, each normalized, then a normalized linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = (torch.nn.Conv2d(3, 8, k, padding=k // 2, bias=False) for k in (1, 3))
        self.norm_a, self.norm_b = torch.nn.BatchNorm2d(8), torch.nn.BatchNorm2d(8, momentum=0.3)
        self.hidden, self.norm_c = torch.nn.Linear(8, 8), torch.nn.BatchNorm1d(8)
        self.last = torch.nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.norm_a(self.a(x)) + self.norm_b(self.b(x)))
        return self.last(torch.relu(self.norm_c(self.hidden(x.mean((2, 3))))))


def exported(net: torch.nn.Module, *, dynamo: bool) -> onnx.ModelProto:
    example, buffer = torch.zeros(2, 3, 6, 6), io.BytesIO()
    if dynamo:
        shapes = ({0: torch.export.Dim("batch")},)
        made = torch.onnx.export(
            net, (example,), dynamo=True, optimize=False, dynamic_shapes=shapes, verbose=False
        )
        return made.model_proto
    torch.onnx.export(
        net,
        (example,),
        buffer,
        dynamo=False,
        input_names=["x"],
        training=torch.onnx.TrainingMode.PRESERVE,
        do_constant_folding=False,
        dynamic_axes={"x": {0: "batch"}},
    )
    return onnx.load_from_string(buffer.getvalue())


def against_torch(group: ProcessGroup) -> dict[str, float]:
    """Largest difference to torch, which trains on the whole batch in one process in float64.

    torch.nn.SyncBatchNorm itself refuses CPU tensors, and float32 is 1e-6 away from float64.
    """
    found = {}
    for dynamo in (False, True):
        torch.manual_seed(0)
        net = Net().train()
        built = build_program(exported(net, dynamo=dynamo), synced(optimizer=Sgd(momentum=0.9)))
        stepper = Stepper(built, threads=1, group=group)
        rule = torch.optim.SGD(net.double().parameters(), 0.05, momentum=0.9)
        for step in range(10):
            batch = batch_of(stepper.inputs, step)
            batch = {name: value[: 12 - step % 3] for name, value in batch.items()}
            x, labels = (torch.from_numpy(value) for value in batch.values())
            rule.zero_grad()
            torch.nn.functional.cross_entropy(net(x.double()), labels).backward()
            rule.step()
            stepper.step(part_of(batch, group), {"learning_rate": 0.05})
        state, expected = stepper.state(), net.state_dict()
        found[f"dynamo={dynamo}"] = max(
            float((np.abs(state[name] - value.numpy()) / np.maximum(value.abs(), 1)).max())
            for name, value in expected.items()
            if "num_batches" not in name
        )
    return found


def without(group: ProcessGroup) -> float:
    """How far the weights are from those of one process without the boost."""
    case = CASES["less-bn"]
    config = dataclasses.replace(case.config, boosts=())
    apart = compared(dataclasses.replace(case, config=config), group)
    return max(apart["apart"].values()) if apart else 0.0


def exchanges(group: ProcessGroup) -> int:
    """Number of exchanges of a step of ResNet-20."""
    stepper = Stepper(build_program(resnet(), synced()), group=group)
    return len(stepper.shared.open(stepper.next_graph).exchanges)


if __name__ == "__main__":
    with ProcessGroup(timeout=60) as shared:
        checks = (against_torch, without, exchanges) if shared.size == 2 else ()
        names = [name for name in CASES if shared.size == 2 or name not in LONG]
        found: dict[str, object] = {name: compared(CASES[name], shared) for name in names}
        found |= {check.__name__: check(shared) for check in checks}
        if shared.rank == 0:
            with open(sys.argv[1], "w") as file:
                json.dump(found, file)
