"""Seconds and peak memory of a conversion, stage by stage.

The subjects are generated here, with random weights: a ResNet-50 (25.6 million parameters) and
chains of residual blocks of about 1,000, 3,000 and 10,000 nodes, without (``mlp``) and with
(``bn``) batch normalization. Every conversion runs in a child process of its own, so that its peak
memory is its own; the median of the repetitions is shown.

The times are from the file to the folder, after the imports: on the wall, and of the processor,
which is the steadier one on a busy machine. ``linear`` is the processor time for one node divided
by that in the smallest graph of the same kind: 1 is linear, above 1 is worse.

Examples:
    All subjects, three times each::

        python -m tools.bench.convert

    Only the ResNet-50 and the largest chain, with the numbers as JSON::

        python -m tools.bench.convert --subject resnet50 --subject bn-10000 --json convert.json
"""

from __future__ import annotations

import argparse
import importlib
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from tools.bench.report import environment, heading, parser_of, say, table, write_json

__all__ = ["SUBJECTS", "chain", "main", "measure", "resnet50"]

# Stage to the functions it consists of, as (module, attribute path). A function that is called
# inside another one counts for its own stage only.
_STAGES: dict[str, tuple[tuple[str, str], ...]] = {
    "load": (("ortboost.program.choose_engine", "load_model"),),
    "normalize": (("ortboost.program.network", "normalize"),),
    "attach loss": (("ortboost.program.forward", "attach_loss"),),
    "to training": (
        ("ortboost.program.forward", "to_training"),
        ("ortboost.program.forward", "dropout_to_training"),
        ("ortboost.program.forward", "find_parameters"),
        ("ortboost.program.forward", "choose_trainable"),
    ),
    "check": (("ortboost.program.choose_engine", "find_blockers"),),
    "evaluation": (("ortboost.program.build", "to_inference"),),
    "decompose": (("ortboost.program.lowered", "decompose"),),
    "prepare": (
        ("ortboost.autodiff.portable.engine", "PortableEngine.prepare"),
        ("ortboost.autodiff.native.engine", "NativeEngine.prepare"),
    ),
    "differentiate": (
        ("ortboost.autodiff.portable.engine", "PortableEngine.differentiate"),
        ("ortboost.autodiff.native.engine", "NativeEngine.differentiate"),
    ),
    "gradient builder (C++)": (("ortboost.autodiff.native.engine", "build_gradients"),),
    "append update": (("ortboost.program.training_graphs", "append_update"),),
    "save": (("ortboost.program.program", "Program.save"),),
}
OTHER = "other"


class GraphWriter:
    """Appends nodes with random weights to a list, for the generated models.

    Args:
        seed: Seed of the weights.
    """

    def __init__(self, seed: int = 0) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: list[onnx.TensorProto] = []
        self._rng = np.random.default_rng(seed)

    def weight(self, name: str, array: NDArray[np.float32]) -> str:
        """Add an initializer and return its name."""
        self.initializers.append(numpy_helper.from_array(array, name))
        return name

    def random(self, name: str, shape: Sequence[int], fan_in: int) -> str:
        """Add a weight drawn from the He initialization."""
        scale = np.float32(np.sqrt(2.0 / fan_in))
        return self.weight(name, self._rng.standard_normal(shape, dtype=np.float32) * scale)

    def op(self, op_type: str, inputs: Sequence[str], output: str, **attributes: Any) -> str:
        """Add a node with one output and return the name of it."""
        self.nodes.append(
            helper.make_node(op_type, inputs, [output], name=f"{output}/{op_type}", **attributes)
        )
        return output

    def conv(self, x: str, name: str, cin: int, cout: int, kernel: int, stride: int = 1) -> str:
        """Add a convolution without a bias, padded to keep the size at stride 1."""
        weight = self.random(f"{name}.weight", (cout, cin, kernel, kernel), cin * kernel * kernel)
        pad = kernel // 2
        return self.op(
            "Conv",
            [x, weight],
            f"{name}.out",
            kernel_shape=[kernel, kernel],
            strides=[stride, stride],
            pads=[pad] * 4,
        )

    def norm(self, x: str, name: str, channels: int) -> str:
        """Add a BatchNormalization in inference form, as exporters write it."""
        ones, zeros = np.ones(channels, np.float32), np.zeros(channels, np.float32)
        weights = [
            self.weight(f"{name}.weight", ones),
            self.weight(f"{name}.bias", zeros),
            self.weight(f"{name}.running_mean", zeros),
            self.weight(f"{name}.running_var", ones),
        ]
        return self.op("BatchNormalization", [x, *weights], f"{name}.out", epsilon=1e-5)

    def gemm(self, x: str, name: str, features_in: int, features_out: int, output: str) -> str:
        """Add a linear layer."""
        weight = self.random(f"{name}.weight", (features_out, features_in), features_in)
        bias = self.weight(f"{name}.bias", np.zeros(features_out, np.float32))
        return self.op("Gemm", [x, weight, bias], output, transB=1)

    def model(self, name: str, shape: Sequence[int], classes: int) -> onnx.ModelProto:
        """Close the graph: input ``x`` `[batch, *shape]`, output ``logits`` `[batch, classes]`."""
        x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", *shape])
        logits = helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", classes])
        graph = helper.make_graph(self.nodes, name, [x], [logits], self.initializers)
        opsets = [helper.make_opsetid("", 18)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def resnet50() -> onnx.ModelProto:
    """ResNet-50 for 224x224 images: 175 nodes, 25.6 million parameters (He et al., 2015)."""
    w = GraphWriter()
    x = w.op("Relu", [w.norm(w.conv("x", "conv1", 3, 64, 7, 2), "bn1", 64)], "relu1")
    pool = {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]}
    x, channels = w.op("MaxPool", [x], "pool", **pool), 64
    for stage, (blocks, width) in enumerate(((3, 64), (4, 128), (6, 256), (3, 512)), 1):
        for block in range(blocks):
            p, stride, cout = (
                f"layer{stage}.{block}",
                2 if stage > 1 and block == 0 else 1,
                width * 4,
            )
            y = w.norm(w.conv(x, f"{p}.conv1", channels, width, 1), f"{p}.bn1", width)
            y = w.conv(w.op("Relu", [y], f"{p}.relu1"), f"{p}.conv2", width, width, 3, stride)
            y = w.op("Relu", [w.norm(y, f"{p}.bn2", width)], f"{p}.relu2")
            y = w.norm(w.conv(y, f"{p}.conv3", width, cout, 1), f"{p}.bn3", cout)
            if block == 0:
                x = w.conv(x, f"{p}.downsample.0", channels, cout, 1, stride)
                x = w.norm(x, f"{p}.downsample.1", cout)
            x = w.op("Relu", [w.op("Add", [y, x], f"{p}.sum")], f"{p}.relu3")
            channels = cout
    x = w.op("Flatten", [w.op("GlobalAveragePool", [x], "mean")], "flat", axis=1)
    w.gemm(x, "fc", channels, 1000, "logits")
    return w.model("resnet50", (3, 224, 224), 1000)


def chain(nodes: int, *, norm: bool, width: int = 16) -> onnx.ModelProto:
    """A chain of residual blocks, ``x + relu(norm(linear(x)))``.

    Args:
        nodes: Number of nodes, about.
        norm: Whether each block has a BatchNormalization.
        width: Features of every layer.
    """
    w, x = GraphWriter(), "x"
    for block in range(max((nodes - 1) // (4 if norm else 3), 1)):
        p = f"block{block}"
        y = w.gemm(x, f"{p}.fc", width, width, f"{p}.linear")
        y = w.norm(y, f"{p}.bn", width) if norm else y
        x = w.op("Add", [x, w.op("Relu", [y], f"{p}.relu")], f"{p}.sum")
    w.gemm(x, "head", width, 10, "logits")
    return w.model("chain", (width,), 10)


def _chain_of(nodes: int, norm: bool) -> Callable[[], onnx.ModelProto]:
    return lambda: chain(nodes, norm=norm)


SUBJECTS: dict[str, Callable[[], onnx.ModelProto]] = {
    "resnet50": resnet50,
    **{
        f"{kind}-{nodes}": _chain_of(nodes, kind == "bn")
        for kind in ("mlp", "bn")
        for nodes in (1000, 3000, 10000)
    },
}
"""Name to generator of the models that are converted."""


class StageClock:
    """Own processor time of each stage: nested stages are not counted twice."""

    def __init__(self) -> None:
        self.seconds = dict.fromkeys([*_STAGES, OTHER], 0.0)
        self._stack = [OTHER]
        self._since = time.process_time()

    def _charge(self) -> None:
        now = time.process_time()
        self.seconds[self._stack[-1]] += now - self._since
        self._since = now

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Count what runs inside for a stage."""
        self._charge()
        self._stack.append(name)
        try:
            yield
        finally:
            self._charge()
            self._stack.pop()

    def watch(self) -> None:
        """Put a clock around the functions of all stages."""
        for name, places in _STAGES.items():
            for module, path in places:
                owner: Any = importlib.import_module(module)
                *parents, attribute = path.split(".")
                for parent in parents:
                    owner = getattr(owner, parent)
                setattr(owner, attribute, self._timed(name, getattr(owner, attribute)))

    def _timed(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*arguments: Any, **keywords: Any) -> Any:
            with self.stage(name):
                return function(*arguments, **keywords)

        return timed


def convert_once(path: Path, folder: Path, engine: str) -> dict[str, Any]:
    """Convert a file in this very process, and measure it.

    Args:
        path: The model.
        folder: Where the program goes.
        engine: Engine of the gradients.

    Returns:
        Seconds in total and by stage, peak memory in MiB (of the process, and what it was before),
        number of nodes of the step graph.
    """
    from ortboost.api.convert_model import convert
    from ortboost.autodiff.engine import get_engine
    from ortboost.deploy.bench_worker import peak_memory
    from ortboost.program.config import ProgramConfig

    get_engine()  # imports the runtime, which is not what is measured
    clock = StageClock()
    clock.watch()
    before = peak_memory()
    start, start_cpu = time.perf_counter(), time.process_time()
    with clock.stage(OTHER):
        program = convert(path, folder, ProgramConfig(engine=engine))
    seconds, cpu = time.perf_counter() - start, time.process_time() - start_cpu
    return {
        "seconds": seconds,
        "cpu_seconds": cpu,
        "stages": clock.seconds,
        "peak_mib": peak_memory() / 2**20,
        "idle_mib": before / 2**20,
        "step_nodes": sum(1 for _ in program.step.graph.all_nodes()),
    }


def measure(name: str, path: Path, repeat: int, engine: str) -> dict[str, Any]:
    """Convert a file ``repeat`` times, each in a child process, and take medians."""
    runs = []
    for _ in range(repeat):
        with tempfile.TemporaryDirectory() as folder:
            child = [sys.executable, "-m", "tools.bench.convert", "--engine", engine]
            child += ["--child", str(path), folder]
            done = subprocess.run(child, check=False, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"{name} could not be converted:\n{done.stderr[-2000:]}")
        runs.append(json.loads(done.stdout.splitlines()[-1]))
    middle = {
        key: statistics.median(run[key] for run in runs)
        for key in ("seconds", "cpu_seconds", "peak_mib", "idle_mib", "step_nodes")
    }
    stages = {s: statistics.median(run["stages"][s] for run in runs) for s in runs[0]["stages"]}
    return {"subject": name, **middle, "stages": stages, "runs": [run["seconds"] for run in runs]}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line."""
    parser = parser_of(__doc__)
    parser.add_argument(
        "--subject", action="append", choices=list(SUBJECTS), help="what to convert (default: all)"
    )
    parser.add_argument("--model", action="append", type=Path, help="files, instead of subjects")
    parser.add_argument("--engine", default="portable", help="engine of the gradients")
    parser.add_argument("--repeat", type=int, default=3, help="conversions of each (default: 3)")
    parser.add_argument("--child", nargs=2, type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args(argv)
    if arguments.child:
        print(json.dumps(convert_once(*arguments.child, arguments.engine)))
        return 0

    results = []
    with tempfile.TemporaryDirectory() as folder:
        for path in arguments.model or map(Path, arguments.subject or SUBJECTS):
            name, file = str(path), path
            if not arguments.model:
                file = Path(folder) / f"{name}.onnx"
                onnx.save(SUBJECTS[name](), file)
            result = measure(name, file, arguments.repeat, arguments.engine)
            nodes = len(onnx.load(file, load_external_data=False).graph.node)
            result.update(nodes=nodes, file_mib=file.stat().st_size / 2**20)
            if not arguments.model:
                file.unlink()
            results.append(result)
            say(f"{name}: {result['seconds']:.2f} s")
    about = environment()
    print(heading(about) + "\n")
    _show(results)
    if arguments.json:
        write_json(arguments.json, {"environment": about, "results": results})
    return 0


def _show(results: Sequence[dict[str, Any]]) -> None:
    smallest: dict[str, float] = {}
    rows = []
    for result in results:
        each = result["cpu_seconds"] / result["nodes"]
        kind = result["subject"].rpartition("-")[0] if result["subject"] in SUBJECTS else ""
        linear = each / smallest.setdefault(kind, each) if kind else None
        rows.append(
            (
                result["subject"],
                f"{result['nodes']:,}",
                f"{result['step_nodes']:,.0f}",
                f"{result['file_mib']:.1f}",
                f"{result['seconds']:.2f}",
                f"{result['cpu_seconds']:.2f}",
                f"{1000 * each:.2f}",
                "" if linear is None else f"{linear:.2f}",
                f"{result['peak_mib']:.0f}",
                f"{result['idle_mib']:.0f}",
            )
        )
    heads = (
        "subject",
        "nodes",
        "in the step",
        "file MiB",
        "seconds",
        "cpu s",
        "cpu ms/node",
        "linear",
    )
    print(table((*heads, "peak MiB", "idle MiB"), rows))
    print("\nProcessor seconds by stage:\n")
    stages = [*_STAGES, OTHER]
    rows = [(stage, *(f"{result['stages'][stage]:.2f}" for result in results)) for stage in stages]
    print(table(("stage", *(result["subject"] for result in results)), rows))


if __name__ == "__main__":
    raise SystemExit(main())
