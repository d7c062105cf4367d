"""The form that is captured, replayed on the CPU: the same buffers, without a CUDA graph."""

import gc
import weakref
from functools import partial

import numpy as np
import pytest

from ortboost.boosts import GradFreeze, LossScale, Thor
from ortboost.program.build import build_program
from ortboost.program.config import ProgramConfig
from ortboost.runtime.compiled_graph import CompiledGraph
from ortboost.runtime.cuda import replay
from ortboost.runtime.cuda.kernels import kernels_of
from ortboost.runtime.cuda.replay import ReplayedGraph, can_replay, form_to_capture, passing_on
from ortboost.runtime.state import DeviceState
from ortboost.runtime.stepper import Stepper
from ortboost.transforms.loss_config import LossConfig
from tests.support import batch_for, model_path, text_model, weights

RATE = {"learning_rate": np.asarray(0.01, np.float32)}


def portable(name, **settings):
    return build_program(model_path(name), ProgramConfig(engine="portable", **settings))


def runner(program, *, replayed):
    """The step on a state of its own, always with two buffers; and that state."""
    catalogue = program.catalogue
    state = DeviceState(catalogue, program.initial, "cpu", ())

    def normal():
        return CompiledGraph(program.step, catalogue, state, threads=1)

    if not replayed:
        return normal(), state
    return ReplayedGraph(normal, program.step, catalogue, state), state


def trained(program):
    return [e.name for e in program.catalogue.state if e.kind == "parameter" and e.next]


def batches(program, sizes):
    return [batch_for(program, size, seed=i) | RATE for i, size in enumerate(sizes)]


@pytest.mark.parametrize("name", ["lenet5", "resnet_bottleneck"])
def test_steps_are_those_of_the_graph(name):
    program = portable(name)
    plain, state = runner(program, replayed=False)
    replayed, own = runner(program, replayed=True)
    for feeds in batches(program, [8, 8, 8, 5, 3, 8, 8, 5, 8]):
        before, after = plain.run(feeds), replayed.run(feeds)
        assert before.keys() == after.keys()
        for key, array in before.items():
            np.testing.assert_allclose(after[key], array, rtol=5e-4, err_msg=key)
    assert replayed.captured == 2  # not the third shape
    for entry in trained(program):
        moved = state.read(entry) - program.initial[entry]
        off = np.linalg.norm(own.read(entry) - state.read(entry))
        assert off < 0.05 * np.linalg.norm(moved) + 1e-5, entry
    assert own.read("ortboost/step") == state.read("ortboost/step") == 9


@pytest.mark.parametrize(
    "boost", [GradFreeze(p=0.5, groups=3), Thor(frequency=2)], ids=lambda b: b.name
)
def test_several_graphs_on_one_state_swap_all_buffers_together(boost):
    """Else up to 2^graphs combinations of buffers would arise, as each writes its own states."""
    program = portable("lenet5", boosts=(boost, LossScale()))
    assert len(program.graphs) > 1
    whole = program.catalogue
    states = [DeviceState(whole, program.initial, "cpu", ()) for _ in range(2)]
    plain, replayed = {}, {}
    for name, model in program.graphs.items():
        own = program.catalogue_of(name)
        plain[name] = CompiledGraph(model, own, states[0], threads=1)
        swapping = *passing_on(model, own, whole), states[1]
        normal = partial(CompiledGraph, *swapping, threads=1)
        replayed[name] = ReplayedGraph(normal, *swapping)
    names = [name for name in program.graphs if name.startswith("step")]
    rng = np.random.default_rng(1)
    for feeds in batches(program, [4] * 12 + [3, 2, 4, 2, 4, 3]):
        name, feeds["learning_rate"] = names[rng.integers(len(names))], np.array(1e-4, "f4")
        before, after = plain[name].run(feeds), replayed[name].run(feeds)
        np.testing.assert_allclose(after["loss"], before["loss"], rtol=1e-3)
    for graph in replayed.values():
        for found in graph._captured.values():
            assert len(found._bindings) <= 2
    for entry in whole.state:
        expected, found = (state.read(entry.name) for state in states)
        off = np.linalg.norm(found - expected)
        assert off <= 0.05 * np.linalg.norm(expected) + 1e-3, entry.name


def test_a_skipped_step_is_skipped():
    program = portable("lenet5")
    replayed, state = runner(program, replayed=True)
    feeds = batches(program, [8])[0]
    for _ in range(4):
        replayed.run(feeds)
    assert replayed.captured == 1
    state.write("ortboost/loss_scale", np.asarray(np.inf, np.float32))
    before = state.read_all()
    assert bool(replayed.run(feeds)["overflow"])
    parameters = [e.name for e in program.catalogue.state if e.kind in ("parameter", "slot")]
    for name in parameters:
        np.testing.assert_array_equal(state.read(name), before[name], err_msg=name)
    assert state.read("ortboost/total_skips") == before["ortboost/total_skips"] + 1


def test_a_state_that_is_written_from_outside_is_read():
    program = portable("mlp")
    replayed, state = runner(program, replayed=True)
    feeds = batches(program, [4])[0]
    losses = [float(replayed.run(feeds)["loss"]) for _ in range(4)]
    for key, value in program.initial.items():
        state.write(key, value)
    assert replayed.captured == 1
    assert float(replayed.run(feeds)["loss"]) == pytest.approx(losses[0], rel=1e-6)


def test_shapes_are_few():
    program = portable("mlp")
    replayed, _ = runner(program, replayed=True)
    for size in (2, 3, 4):
        for feeds in batches(program, [size] * 4):
            replayed.run(feeds)
    assert replayed.captured == 2


def test_a_failure_costs_nothing(monkeypatch, caplog):
    program = portable("mlp")
    plain, _ = runner(program, replayed=False)
    replayed, _ = runner(program, replayed=True)

    def fails(*_):
        raise RuntimeError("CUDA error 900\nmore")

    monkeypatch.setattr(replay._Captured, "run", fails)
    for feeds in batches(program, [4] * 5):
        assert replayed.run(feeds)["loss"] == plain.run(feeds)["loss"]
    assert replayed.captured == 0
    assert caplog.text.count("CUDA error 900") == 1
    assert "more" not in caplog.text


def test_a_large_network_keeps_the_memory_of_one_kind_of_step(monkeypatch):
    monkeypatch.setattr(replay, "_LARGE", 0)
    program = portable("mlp")
    plain, _ = runner(program, replayed=False)
    replayed, _ = runner(program, replayed=True)
    kept = []
    for feeds in batches(program, [4, 4, 3, 4, 2, 4]):  # a third shape: lengths vary
        loss = plain.run(feeds)["loss"]
        np.testing.assert_allclose(replayed.run(feeds)["loss"], loss, rtol=1e-5)
        kept.append((replayed._normal is not None, replayed.captured))
    assert kept == [(False, 1), (False, 1), (False, 2), (False, 2), (True, 0), (True, 0)]


def test_what_is_not_captured():
    assert can_replay(portable("lenet5"), "cuda")
    assert not can_replay(portable("lenet5"), "cpu")
    assert not can_replay(portable("lenet5", accumulate=2), "cuda")
    assert not can_replay(portable("transformer_tiny"), "cuda")  # dropout


def test_a_large_state_is_not_held_twice(monkeypatch):
    monkeypatch.setattr(replay, "_STATE", 10_000)
    assert not can_replay(portable("lenet5"), "cuda")


STORED = {
    "zero": np.array(0),
    "one": np.array(1),
    "first": np.array([0]),
    "last": np.array([-1]),
}


def gathering(body):
    """A step with a GatherND, whose indices are positions, as transformers' decoders have it."""
    model = text_model(
        f"""<ir_version: 10, opset_import: ["" : 18]>
        net (float[batch,length,2] x, int64[batch,length,2] at, float[2,3] w, int64 zero,
             int64 one, int64[1] first, int64[1] last) => (float[batch,length,3] y) {{
          sizes = Shape<end = 2>(x)  n = Gather<axis = 0>(sizes, one)
          from = CastLike(zero, one)  positions = Range(from, n, one)
          row = Unsqueeze(positions, first)
          copies = Expand(row, sizes)
          column = Unsqueeze(positions, last)  none = Mul(column, zero)
          pairs = Concat<axis = -1>(none, column)
          {body}
          y = MatMul(scaled, w)
        }}""",
        w=weights(2, 3),
        **STORED,
    )
    return build_program(model, ProgramConfig(engine="portable", loss=LossConfig("mse")))


def feeds_of(rows, length):
    random = np.random.default_rng(rows)
    return RATE | {
        "x": random.standard_normal((rows, length, 2)).astype(np.float32),
        "at": random.integers(-2, 2, (rows, length, 2)),
        "labels": random.standard_normal((rows, length, 3)).astype(np.float32),
    }


def form(program, feeds):
    shapes = {name: array.shape for name, array in feeds.items()}
    return form_to_capture(program.step, shapes, "cpu", kernels_of("1.31.0"))


@pytest.mark.parametrize(
    ("body", "gathers"),
    [
        # Positions of positions: known before.
        (
            "p = GatherND(copies, pairs)  f = Cast<to = 1>(p)  g = Unsqueeze(f, last)"
            "scaled = Mul(x, g)",
            0,
        ),
        ("rows = GatherND(x, pairs)  scaled = Add(x, rows)", 1),
        ("rows = GatherND(x, at)  scaled = Add(x, rows)", 1),
        ("back = Sub(pairs, one)  rows = GatherND(x, back)  scaled = Add(x, rows)", 1),
    ],
)
def test_gathernd_is_captured_in_another_form(body, gathers):
    program = gathering(body)
    plain, _ = runner(program, replayed=False)
    replayed, _ = runner(program, replayed=True)
    for rows, length in ((4, 3), (4, 3), (2, 5)):
        feeds = {k: v for k, v in feeds_of(rows, length).items() if k != "at" or "at)" in body}
        kinds = [node.op_type for node in form(program, feeds).graph]
        assert (kinds.count("GatherND"), kinds.count("Gather")) == (0, gathers)
        found, expected = replayed.run(feeds)["loss"], plain.run(feeds)["loss"]
        np.testing.assert_allclose(found, expected, rtol=1e-5)
    assert replayed.captured == 2


def test_a_gathernd_of_batches_is_not_captured():
    body = "some = GatherND<batch_dims = 1>(x, at)  r = Unsqueeze(some, last)  scaled = Add(x, r)"
    program = gathering(body)
    assert form(program, feeds_of(4, 3)).startswith("a GatherND (")


def test_a_failed_capture_frees_its_memory_before_the_normal_step(monkeypatch):
    program = portable("mlp")
    replayed, _ = runner(program, replayed=True)
    made, alive = [], []

    def fails(self, feeds):
        made.append(weakref.ref(self))
        raise RuntimeError("out of memory")

    normal = ReplayedGraph._run_normally

    def watched(self, feeds):
        alive.extend(ref() is not None for ref in made)
        return normal(self, feeds)

    monkeypatch.setattr(replay._Captured, "run", fails)
    monkeypatch.setattr(ReplayedGraph, "_run_normally", watched)
    replayed.run(batches(program, [4])[0])
    assert alive == [False]


def test_a_stepper_is_freed_at_once(monkeypatch):
    monkeypatch.setattr("ortboost.runtime.stepper.can_replay", lambda program, device: True)
    stepper = Stepper(portable("mlp"), threads=1)
    state = weakref.ref(stepper._state)
    gc.disable()
    try:
        del stepper
        assert state() is None
    finally:
        gc.enable()
