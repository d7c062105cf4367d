"""Look for wrong gradients: compare operators in many forms with central differences.

    python tools/probe_gradients.py            the native engine (after decomposition)
    python tools/probe_gradients.py --engine portable
    python tools/probe_gradients.py --symbolic batch    with inputs of unknown lengths
    python tools/probe_gradients.py --raw      the bare GradientGraphBuilder
    python tools/probe_gradients.py --only Pool

Each case runs in a separate process, as the builder can crash. Exit status 1 if a gradient is
wrong. The cases are in tools/probe_cases.py.
"""

from __future__ import annotations

import argparse
import collections
import os
import pickle
import sys
from pathlib import Path

import numpy as np
import onnx_ir as ir

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1]))
from probe_cases import Case, cases

from ortboost.graph.shapes.shape_inference import infer_shapes
from tests.autodiff.numeric import numeric_gradients


def raw_gradients(
    model: ir.Model, wrt: list[str], feeds: dict[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """The builder alone, on the unmodified model."""
    from onnxruntime import SessionOptions
    from onnxruntime.capi._pybind_state import GradientGraphBuilder, get_optimized_model

    options = SessionOptions()
    options.log_severity_level = 4
    data = ir.to_proto(model).SerializeToString()
    data = get_optimized_model(data, set(wrt), options)
    builder = GradientGraphBuilder(data, {"loss"}, set(wrt), "loss", options)
    builder.build()
    return run(builder.get_model(), wrt, feeds)


def our_gradients(
    model: ir.Model, wrt: list[str], feeds: dict[str, np.ndarray], engine_name: str = "native"
) -> dict[str, np.ndarray]:
    """The engine as ortboost uses it."""
    from ortboost.autodiff.decompose import decompose
    from ortboost.autodiff.engine import get_engine

    engine = get_engine(engine_name)
    work = model.clone()
    decompose(work, wrt=wrt, loss="loss", engine=engine)
    result = engine.differentiate(work, "loss", wrt)
    if engine_name == "portable":
        wrong = false_shapes(result, feeds)
        if wrong:
            raise AssertionError(f"shapes are not what the graph says: {wrong[:3]}")
    return run(ir.to_proto(result).SerializeToString(), wrt, feeds)


def false_shapes(model: ir.Model, feeds: dict[str, np.ndarray]) -> list[str]:
    """Values and outputs whose shapes at run time differ from those in the graph."""
    import onnxruntime as ort

    typed = model.clone()
    inner = [
        value
        for node in typed.graph
        for value in node.outputs
        if (value.name or "").startswith("ortboost/") and value.shape is not None and value.dtype
        if not value.is_graph_output()
    ]
    made = [*inner, *(value for value in typed.graph.outputs if value.shape is not None)]
    if not made:
        return []
    shapes = {value.name: list(value.shape or ()) for value in made}
    for value in made:
        value.shape = None
    typed.graph.outputs.extend(inner)
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    data = ir.to_proto(typed).SerializeToString()
    session = ort.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    needed = {value.name for value in session.get_inputs()}
    fed = {name: array for name, array in feeds.items() if name in needed}
    lengths: dict[str, int] = {}
    for value in model.graph.inputs:
        if value.name in fed and value.shape is not None:
            pairs = zip(value.shape, fed[value.name].shape, strict=True)
            lengths.update(
                {str(d.value): n for d, n in pairs if not isinstance(d, int) and d.value}
            )
    wrong = []
    for name, array in zip(shapes, session.run(list(shapes), fed), strict=True):
        dims, found = shapes[name], np.shape(array)
        same = len(dims) == len(found) and all(
            (dim if isinstance(dim, int) else lengths.setdefault(str(dim.value), n)) == n
            for dim, n in zip(dims, found, strict=True)
            if isinstance(dim, int) or dim.value
        )
        if not same:
            wrong.append(f"{name}: {[str(dim) for dim in dims]} is {list(found)}")
    return wrong


def run(data: bytes, wrt: list[str], feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    needed = {value.name for value in session.get_inputs()}
    outputs = session.run(
        [f"{name}_grad" for name in wrt] + ["loss"],
        {name: array for name, array in feeds.items() if name in needed},
    )
    return dict(zip([*wrt, "loss"], outputs, strict=True))


def forward_difference(
    model: ir.Model, wrt: list[str], feeds: dict[str, np.ndarray], step: float = 2e-3
) -> dict[str, np.ndarray]:
    """Central differences of the runtime itself in float32, if the reference cannot run it."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(ir.to_proto(model).SerializeToString(), options)
    found = {}
    for name in wrt:
        gradient = np.zeros(feeds[name].shape)
        for index in np.ndindex(*feeds[name].shape):
            values = []
            for sign in (1, -1):
                moved = feeds[name].copy()
                moved[index] += sign * step
                values.append(float(session.run(["loss"], {**feeds, name: moved})[0]))
            gradient[index] = (values[0] - values[1]) / (2 * step)
        found[name] = gradient
    (found["loss"],) = session.run(["loss"], feeds)
    return found


SYMBOLIC = ("batch", "all", "each", "unnamed", "rank")
"""What :func:`with_symbols` leaves unknown."""


def with_symbols(model: ir.Model, which: str) -> ir.Model:
    """Remove lengths from the shapes of a model's inputs, and infer the other shapes again.

    Args:
        model: The model, changed in place.
        which: ``batch``: the first dimension of the first input becomes a name. ``all``: all its
            dimensions. ``each``: every dimension of every input gets its own name. ``unnamed``: all
            are unnamed. ``rank``: the inputs have no shapes.
    """
    for place, value in enumerate(model.graph.inputs):
        sizes = [] if value.shape is None else list(value.shape)
        if which in ("batch", "all"):
            if place:
                continue
            names = [
                f"N{size}" if k == 0 or which == "all" else size for k, size in enumerate(sizes)
            ]
        elif which == "each":
            names = [f"N{place}_{k}" for k in range(len(sizes))]
        else:
            names = [None] * len(sizes)
        value.shape = None if which == "rank" else ir.Shape(names)
    for node in model.graph:
        for output in node.outputs:
            if not output.is_graph_output():
                output.shape = None
    infer_shapes(model)
    return model


def probe(
    case: Case, raw: bool = False, engine: str = "native", symbolic: str = ""
) -> tuple[str, str]:
    """``(status, detail)`` of one case: ok, wrong, refused, unclear."""
    model, wrt, feeds = case.build()
    if symbolic:
        model = with_symbols(model, symbolic)
    try:
        if raw:
            found = raw_gradients(model, wrt, feeds)
        else:
            found = our_gradients(model, wrt, feeds, engine)
    except AssertionError as error:
        return "wrong", str(error)
    except Exception as error:
        return (
            "refused",
            f"{type(error).__name__}: {str(error).splitlines()[0][:150]} {str(error)[-160:]!r}",
        )
    oracle = "reference"
    try:
        from tests.autodiff.numeric import evaluate

        (loss,) = evaluate(model, feeds, ["loss"])
        np.testing.assert_allclose(loss, found["loss"], rtol=1e-3, atol=1e-3)
        expected = numeric_gradients(model, "loss", wrt, feeds)
        tolerance = 2e-5  # the largest error is 8e-6: float32 against float64
    except (Exception, AssertionError) as error:
        oracle = f"runtime ({str(error).splitlines()[0][:60]})"
        try:
            expected = forward_difference(model, wrt, feeds)
        except Exception as second:
            return "unclear", f"{oracle}; {str(second).splitlines()[0][:100]}"
        if not np.allclose(expected["loss"], found["loss"], rtol=1e-3, atol=1e-3):
            return "wrong", f"loss {found['loss']} should be {expected['loss']}"
        tolerance = 1e-2  # differences in float32
    for name in wrt:
        if found[name].shape != expected[name].shape:
            return "wrong", f"{name}: shape {found[name].shape} should be {expected[name].shape}"
        error = np.abs(found[name] - expected[name]) / (1 + np.abs(expected[name]))
        if not np.all(error < tolerance):
            place = np.unravel_index(np.nanargmax(np.nan_to_num(error, nan=1e9)), error.shape)
            return "wrong", (
                f"{name}{list(map(int, place))} is {found[name][place]:.5g}, "
                f"should be {expected[name][place]:.5g} [{oracle}]"
            )
    return "ok", oracle


def isolated(case: Case, raw: bool, engine: str, symbolic: str) -> tuple[str, str]:
    """:func:`probe` in a child process."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read)
        try:
            answer = probe(case, raw, engine, symbolic)
        except BaseException as error:
            answer = ("broken", f"{type(error).__name__}: {error}"[:300])
        with os.fdopen(write, "wb") as stream:
            pickle.dump(answer, stream)
        os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as stream:
        data = stream.read()
    _, status = os.waitpid(child, 0)
    return pickle.loads(data) if data else ("crash", f"signal {status & 127}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--raw", action="store_true", help="the bare builder, without our rewrites")
    parser.add_argument("--engine", default="native", help="name of the engine")
    parser.add_argument(
        "--symbolic", choices=SYMBOLIC, default="", help="lengths that the file leaves open"
    )
    parser.add_argument("--only", default="", help="cases whose name contains this")
    parser.add_argument("--all", action="store_true", help="print the good ones too")
    options = parser.parse_args()
    np.seterr(all="ignore")
    counts: collections.Counter[str] = collections.Counter()
    for case in cases():
        if options.only.lower() not in case.name.lower():
            continue
        status, detail = isolated(case, options.raw, options.engine, options.symbolic)
        counts[status] += 1
        if status != "ok" or options.all or "runtime" in detail:
            print(f"{status:8} {case.name:55} {detail}", flush=True)
    print(", ".join(f"{count} {status}" for status, count in sorted(counts.items())))
    return 1 if counts["wrong"] or counts["crash"] or counts["broken"] else 0


if __name__ == "__main__":
    raise SystemExit(main())
