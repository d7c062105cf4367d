"""Inversions divided among processes: who inverts what; real processes give the same bits."""

from __future__ import annotations

import json

import numpy as np
import onnx_ir as ir
import pytest

from ortboost.boosts import GradAccumulation, Thor
from ortboost.boosts.roles import PART
from ortboost.boosts.thor_shares import own_blocks
from ortboost.core.errors import ConfigError
from ortboost.graph.build import Builder
from ortboost.program.build import build_program
from ortboost.program.config import ProgramConfig
from ortboost.program.split import cut_exchanges, save_split, split_program
from tests.parallel.launch import finished, needs_torch, torchrun
from tests.support import assert_three_lines, batch_for, run, session, small_mlp, stepper


def assigned(kinds, processes):
    """The load of each process, and the number of owners of each block, from the graph."""
    graph = ir.Graph([], [], nodes=[], opset_imports={"": 18}, name="shares")
    part = ir.val("part", ir.DataType.INT64, [2])
    graph.inputs.append(part)
    b = Builder(graph, "shares")
    for own, some in own_blocks(b, part, kinds):
        graph.outputs.extend([b.op("Cast", own, to=7, dtype=ir.DataType.INT64), some])
    b.flush()
    opened = session(ir.Model(graph, ir_version=10))
    loads, owners = [], []
    for rank in range(processes):
        found = opened.run(None, {"part": np.array([rank, processes])})
        flags = found[::2]
        assert [bool(flag) for flag in found[1::2]] == [bool(own.any()) for own in flags]
        loads.append(sum(int(own.sum()) * c for own, (_, c) in zip(flags, kinds, strict=True)))
        owners.append(np.concatenate(flags))
    return loads, np.sum(owners, axis=0)


def longest_first(kinds, processes):
    """The loads by the rule itself, block by block."""
    loads = [0] * processes
    for number, cost in kinds:
        for _ in range(number):
            loads[loads.index(min(loads))] += cost
    return loads


@pytest.mark.parametrize("processes", [1, 2, 3, 5, 16, 70])
def test_blocks_are_assigned_by_the_longest_processing_time(processes):
    rng = np.random.default_rng(processes)
    for _ in range(10):
        costs = sorted({*rng.integers(1, 10**12, rng.integers(1, 6)).tolist()}, reverse=True)
        kinds = [(int(rng.integers(1, 12)), cost) for cost in costs]
        loads, owners = assigned(kinds, processes)
        assert (owners == 1).all()
        assert sorted(loads) == sorted(longest_first(kinds, processes))


# ---- the graph, with the rank of one process after the other ------------------------------------


def sent(program, processes, **changed):
    """What each process would send, and what it would send alone."""
    split = split_program(program)["step"]
    feeds = {
        **batch_for(program, 12),
        "learning_rate": np.array(0.1, np.float32),
        **program.initial,
    }
    names = {value.name for value in split.gradients.graph.inputs}
    feeds |= run(split.gradients, {name: feeds[name] for name in names}) | changed
    update, points = cut_exchanges(split.update)
    update.graph.outputs[:] = [v for v in update.graph.outputs if (v.name or "").endswith("/cut")]
    feeds |= {spec.name: np.zeros(spec.shape, np.float32) for spec in points}
    names = {value.name for value in update.graph.inputs}

    def part(rank, size):
        own = {PART: np.array([rank, size])}
        return run(update, {name: feeds[name] for name in names} | own)

    return [part(rank, processes) for rank in range(processes)], part(0, 1)


def distributed(**settings):
    thor = Thor(frequency=2, distribute_inverses=True, **settings)
    return build_program(small_mlp(features=10, hidden=16), ProgramConfig(boosts=(thor,)))


@pytest.mark.parametrize("processes", [2, 3, 7])
@pytest.mark.parametrize("block", [0, 4, 128])
def test_parts_add_up_and_no_block_is_inverted_twice(block, processes):
    parts, whole = sent(distributed(block=block, pi=True), processes)
    for name, expected in whole.items():
        np.testing.assert_array_equal(sum(part[name] for part in parts), expected)
        each = [part[name].any(axis=(1, 2)) for part in parts]
        assert (np.sum(each, axis=0) == 1).all()
    busy = [any(value.any() for value in part.values()) for part in parts]
    assert sum(busy) == min(processes, sum(len(v) for n, v in whole.items() if "inverse" in n))


def test_a_step_that_overflows_inverts_nothing():
    parts, _ = sent(distributed(), 2, w1_grad=np.full((16, 10), np.inf, np.float32))
    assert not any(value.any() for part in parts for value in part.values())


def test_products_of_inversions_are_inside_branches():
    """A process without a block of some size computes no product of that size."""
    program = distributed(block=0)
    outside = sum(node.op_type == "MatMul" for node in program.step.graph)
    plain = build_program(small_mlp(features=10, hidden=16), ProgramConfig(boosts=()))
    factors = 4
    assert outside == sum(node.op_type == "MatMul" for node in plain.step.graph) + factors


@pytest.mark.parametrize(
    ("graph", "producer"), [("step", "ortboost/gate"), ("flush", "flushed/node")]
)
def test_only_a_full_window_is_inverted(graph, producer):
    """The condition of each branch needs what tells whether there will be an update."""
    boosts = (Thor(frequency=2, distribute_inverses=True), GradAccumulation(2))
    program = build_program(small_mlp(), ProgramConfig(boosts=boosts))
    branches = [n for n in program.graphs[graph].graph if "thor/own" in (n.name or "")]
    assert branches
    for node in branches:
        some = node.inputs[0].producer()
        assert some.op_type == "And"
        assert producer in {value.producer().name for value in some.inputs}


def test_a_single_process_computes_the_same_bits():
    states = []
    for program in (distributed(), build_program_without()):
        training = stepper(program)
        for seed in range(5):
            training.step(batch_for(program, 8, seed=seed), {"learning_rate": 0.05})
        states.append(training.state())
    divided, plain = states
    assert divided.keys() - plain.keys() == {PART}
    for name, expected in plain.items():
        assert divided[name].tobytes() == expected.tobytes(), name


def build_program_without():
    return build_program(
        small_mlp(features=10, hidden=16), ProgramConfig(boosts=(Thor(frequency=2),))
    )


def test_only_the_graph_of_second_order_has_shares():
    program = distributed()
    assert PART in {entry.name for entry in program.catalogue_of("step").state}
    assert PART not in {entry.name for entry in program.catalogue_of("step.1").state}


def test_two_files_are_not_enough(tmp_path):
    with pytest.raises(ConfigError, match="exchange values within") as caught:
        save_split(distributed(), tmp_path)
    assert_three_lines(caught.value)


def test_mindspore_factors_are_refused_with_several_processes():
    thor = Thor(mode="mindspore", batch_size=8, distribute_inverses=True)
    program = build_program(small_mlp(), ProgramConfig(boosts=(thor,)))
    with pytest.raises(ConfigError, match="MindSpore's factors"):
        split_program(program)


# ---- real processes ------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=[2, 3, 4])
def found(request, tmp_path_factory):
    path = tmp_path_factory.mktemp("inverses") / "found.json"
    finished(torchrun(request.param, "-m", "tests.parallel.inverses", path))
    return json.loads(path.read_text())


@needs_torch
@pytest.mark.slow
def test_no_bit_differs(found):
    checks = ("shares", "resumed")
    cases = {name: case for name, case in found.items() if name not in checks}
    assert len(cases) >= 13
    for name, case in cases.items():
        assert case["differ"] == [], name
        assert case["more"] == [PART]
        assert case["moved"] > 1e-3, name
    assert 0 < cases["rejected"]["kept"] < 16
    assert cases["overflow"]["skips"] == cases["accumulated overflow"]["skips"] == 3
    assert cases["accumulated"]["updates"] == 4


@needs_torch
@pytest.mark.slow
def test_each_process_inverts_its_share(found):
    own, parts = found["shares"]["own"], found["shares"]["parts"]
    assert sorted(name for names in own for name in names) == found["shares"]["all"]
    assert parts == [[rank, len(parts)] for rank in range(len(parts))]
    assert len(own[0]) == 1  # the largest of four; the others share the rest
    assert all(own)


@needs_torch
@pytest.mark.slow
def test_a_run_goes_on_with_another_number_of_processes(found):
    result = found["resumed"]
    assert result["part"] == [0, 1]
    assert "'ortboost/part' is shared by the processes" in result["changed"]
    assert result["bits"] is True
    assert result["apart"] <= 1e-6 < 1e-3 < result["moved"]
