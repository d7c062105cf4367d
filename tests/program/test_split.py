"""A step in two graphs: the same results as in one, the cut values, and refusals."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from ortboost.boosts import DimReduce, GradAccumulation, GradFreeze, GroupLossScale, LessBN, Thor
from ortboost.boosts.base import Boost, Stage
from ortboost.core.errors import ConfigError, ModelError
from ortboost.program.build import build_program
from ortboost.program.catalogue import read_catalogue
from ortboost.program.config import ProgramConfig
from ortboost.program.split import (
    cut_exchanges,
    cut_name,
    save_split,
    split_program,
    split_step,
)
from tests.support import (
    ENGINES,
    assert_three_lines,
    batch_for,
    model_path,
    run,
    session,
    small_convnet,
    small_mlp,
)


@dataclass(frozen=True)
class Watching(Boost):
    """Uses a value without declaring how processes share it."""

    name: ClassVar[str] = "watching"
    stage: ClassVar[Stage] = "update"

    def watched(self, graph):
        return [graph.prediction], []


def program(model, *boosts, engine="portable", **settings):
    config = ProgramConfig(engine=engine, boosts=boosts, **settings)
    return build_program(model if isinstance(model, ir.Model) else str(model_path(model)), config)


def test_a_step_is_skipped_where_the_statistics_of_another_process_overflow():
    (split,) = split_program(program(small_convnet())).values()
    (check,) = split.checks
    assert check.name == "ortboost/statistics"
    assert check.name in {value.name for value in split.gradients.graph.outputs}
    assert check.name in {value.name for value in split.update.graph.inputs}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    ("model", "boosts"),
    [
        ("mlp", ()),
        ("resnet20", (LessBN(),)),
        ("lenet5", (GroupLossScale(),)),
        ("lenet5", (GradFreeze(groups=3),)),
        ("lenet5", (Thor(frequency=2),)),
    ],
)
def test_the_numbers_of_one_graph(model, boosts, engine):
    built = program(model, *boosts, engine=engine, metrics=("accuracy",))
    feeds = {**batch_for(built), "learning_rate": np.array(0.1, np.float32), **built.initial}
    for name, split in split_program(built).items():
        whole = built.graphs[name]
        given = {v.name for v in whole.graph.inputs}
        expected = run(whole, {n: a for n, a in feeds.items() if n in given})
        found, cut = {}, {}
        for half in (split.gradients, split.update):
            if engine == "portable":  # the other has operators of the runtime
                onnx.checker.check_model(ir.to_proto(half), full_check=True)
            names = {v.name for v in half.graph.inputs}
            cut |= run(half, {n: a for n, a in {**feeds, **cut}.items() if n in names})
        found = {n: cut[n] for n in expected}
        for output, value in expected.items():
            np.testing.assert_array_equal(found[output], value, err_msg=f"{name}: {output}")


def test_factors_are_averaged():
    for boosts in ((Thor(frequency=4),), (Thor(frequency=4), GradAccumulation(2))):
        split = split_program(program(small_mlp(), *boosts))
        assert {
            s.name.removeprefix("ortboost/batch_mean/thor/") for s in split["step"].averaged
        } == {f"{side}/{name}" for side in ("a", "g", "share") for name in ("w1", "w2")}
        assert not split["step.1"].averaged


@pytest.mark.parametrize(
    ("boost", "why"),
    [
        (Thor(mode="mindspore", batch_size=8), "MindSpore's factors"),
        (Thor(batch_size=8), "batch_size of THOR"),
    ],
)
def test_what_is_no_mean_over_the_batch_is_refused(boost, why):
    with pytest.raises(ConfigError, match=why) as caught:
        split_program(program(small_mlp(), boost))
    assert_three_lines(caught.value)


def test_a_boost_that_looks_at_values_needs_one_process_unless_it_says_how_they_are_shared():
    assert "uses intermediate values" in (Watching().needs_one_process or "")
    assert Thor().needs_one_process is None
    assert GradAccumulation(2).needs_one_process is None


def test_the_files_run_without_ortboost(tmp_path):
    built = program("mlp")
    paths = save_split(built, tmp_path)
    assert [path.name for path in paths] == ["gradients.onnx", "update.onnx"]
    batch = batch_for(built)
    halves = [{n: v[rows] for n, v in batch.items()} for rows in (slice(0, 4), slice(4, 8))]
    opened = [session(path) for path in paths]
    given = [{v.name for v in one.get_inputs()} for one in opened]
    names = [v.name for v in opened[0].get_outputs()]
    parts = [
        dict(
            zip(
                names,
                opened[0].run(
                    names, {**half, **{n: a for n, a in built.initial.items() if n in given[0]}}
                ),
                strict=True,
            )
        )
        for half in halves
    ]
    mean = {n: (parts[0][n] + parts[1][n]) / 2 for n in names if n.endswith("_grad")}
    feeds = {**built.initial, **mean, "learning_rate": np.array(0.1, np.float32)}
    outputs = [v.name for v in opened[1].get_outputs()]
    found = dict(zip(outputs, opened[1].run(outputs, {n: feeds[n] for n in given[1]}), strict=True))
    whole = {**batch, **built.initial, "learning_rate": np.array(0.1, np.float32)}
    expected = run(built.step, whole)
    for name in ("fc1.weight", "fc2.bias"):
        np.testing.assert_allclose(
            found[f"ortboost/next/{name}"], expected[f"ortboost/next/{name}"], rtol=0, atol=1e-6
        )


def test_each_half_describes_itself():
    built = program("resnet20")
    split = split_program(built)["step"]
    first, second = read_catalogue(split.gradients), read_catalogue(split.update)
    assert [s.name for s in first.batch] == [s.name for s in built.catalogue.batch]
    assert not second.randomness  # the draws are in the forward pass
    assert not first.hyper
    assert all(entry.next is None for entry in first.state)
    received = (*split.summed, *split.checks, *split.kept)
    assert {s.name for s in second.batch} == {s.name for s in received}
    assert {e.name for e in second.state if e.next} == {
        e.name for e in built.catalogue.state if e.next
    }
    for half, catalogue in ((split.gradients, first), (split.update, second)):
        specs = (*catalogue.batch, *catalogue.hyper, *catalogue.state)
        assert {v.name for v in half.graph.inputs} == {s.name for s in specs}
    assert all(s.name.startswith("ortboost/raw/") for s in split.kept)


def test_of_a_window_only_the_check_travels():
    split = split_program(program("mlp", GradAccumulation(3)))["step"]
    assert not split.summed
    assert [s.shape for s in split.checks] == [()] * len(split.checks) != []
    assert "fc1.weight_grad" in {s.name for s in split.kept}
    moved = {e.name for e in read_catalogue(split.update).state if e.next}
    assert "ortboost/accumulated/fc1.weight" in moved
    assert "fc1.weight" not in moved


def test_in_the_subspace_alone_k_numbers_travel(tmp_path):
    rows = np.random.default_rng(0).standard_normal((5, 51)).astype(np.float32)
    np.save(tmp_path / "p.npy", rows)
    plain, alone = (
        split_program(program(small_mlp(), DimReduce(str(tmp_path / "p.npy"), alpha=alpha)))["step"]
        for alpha in (0.01, 0.0)
    )
    assert [s.shape for s in alone.summed] == [(5,)]
    assert {s.name for s in plain.summed} == {"w1_grad", "b1_grad", "w2_grad", "b2_grad"}


def test_only_an_update_with_exchange_points_is_cut():
    plain = split_program(program("mlp"))["step"].update
    assert cut_exchanges(plain) == (plain, ())
    shared = program("lenet5", Thor(frequency=2, distribute_inverses=True))
    update = split_program(shared)["step"].update
    cut, points = cut_exchanges(update)
    named = {spec.name for spec in points}
    assert named
    assert named <= {spec.name for spec in read_catalogue(cut).batch}
    assert named <= {value.name for value in cut.graph.inputs}
    assert not named & {value.name for value in update.graph.inputs}  # not changed
    made = {value.name for value in cut.graph.outputs}
    assert {cut_name(name) for name in named} <= made
    assert {cut_name(name) for name in named} <= {s.name for s in read_catalogue(cut).outputs}


def test_an_old_program_is_refused():
    built = program("mlp", GradAccumulation(2))
    for node in built.step.graph:
        for output in node.outputs:
            if (output.name or "").startswith("ortboost/zeros"):
                output.name = output.name.replace("zeros", "older")
    with pytest.raises(ModelError, match="cannot be split") as caught:
        split_step(built.step, accumulates=True)
    assert_three_lines(caught.value)
