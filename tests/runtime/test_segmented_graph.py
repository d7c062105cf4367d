"""A graph run in segments gives the bits of one run, for changing batch sizes, on both engines."""

import numpy as np
import pytest

from ortboost.program.build import build_program
from ortboost.program.catalogue import read_catalogue
from ortboost.program.config import ProgramConfig
from ortboost.program.segments import order_gradients
from ortboost.program.split import split_program
from ortboost.runtime.compiled_graph import CompiledGraph
from ortboost.runtime.peepholes import for_device
from ortboost.runtime.segmented_graph import SegmentedGraph
from ortboost.runtime.state import DeviceState
from tests.support import ENGINES, batch_for, model_path, small_convnet

MODELS = {"convnet": small_convnet, "lenet5": lambda: str(model_path("lenet5"))}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", MODELS)
def test_the_bits_of_one_run(name, engine):
    program = build_program(MODELS[name](), ProgramConfig(engine=engine))
    split = split_program(program)["step"]
    catalogue = read_catalogue(split.gradients)
    form = for_device(split.gradients, "cpu", threads=1)
    sizes = {s.name: int(np.prod(s.shape)) * 4 for s in split.summed}
    state = DeviceState(program.catalogue, program.initial, "cpu", frozenset())
    whole = CompiledGraph(split.gradients, catalogue, state, threads=1)
    groups = order_gradients(form, sizes, 3)
    parts = SegmentedGraph(form, catalogue, state, groups, threads=1, placed={})
    assert len(parts) == 3
    for step, size in enumerate((8, 8, 5, 9, 9)):
        feeds = batch_for(program, size, seed=step)
        wanted, found, ready = whole.run(feeds), {}, []
        for i in range(len(parts)):
            made = parts.run(i, feeds)
            ready.append({*made} & {*sizes})
            found |= made
        assert found.keys() == wanted.keys()
        assert [n for n in found if not np.array_equal(found[n], wanted[n])] == []
        assert ready == [{*group} for group in groups]  # each gradient as soon as its segment ran
