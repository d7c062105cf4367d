from __future__ import annotations

import tracemalloc
from functools import partial
from threading import Thread

import numpy as np
import pytest

from ortboost.core.errors import FileError, UsageError
from ortboost.core.loss_scale import NO_SCALE
from ortboost.core.tensor_file import form_of, write_tensors
from ortboost.optimizers import Adam
from ortboost.program.build import build_program
from ortboost.program.config import ParameterGroup, ProgramConfig
from ortboost.program.program import Program
from ortboost.transforms.attach_loss import LossConfig
from tests.support import (
    ENGINES,
    assert_same_bits,
    assert_three_lines,
    batch_for,
    shipped_program,
    small_convnet,
    small_mlp,
    stepper,
    text_model,
    weights,
)

RATE = {"learning_rate": 0.1}
PROGRAM = build_program(small_convnet(), ProgramConfig(optimizer=Adam()))
FEEDS = batch_for(PROGRAM, 4)
GROUPED = build_program(
    small_mlp(), ProgramConfig(groups=(ParameterGroup("head", ("*2",), "0.1"),))
)


@pytest.fixture(params=[True, False], ids=["in_place", "double"])
def training(request):
    return stepper(PROGRAM, in_place=request.param)


def pointers(training) -> set[int]:
    state = training._state
    entries = state.catalogue.state
    return {buffer.data_ptr() for entry in entries for buffer in state.buffers(entry.name)}


def test_state_stays_where_it_is(training):
    before = pointers(training)
    for _ in range(5):
        training.step(FEEDS, RATE)
    training.load_state(PROGRAM.initial)
    training.set("fb", np.zeros(3))
    training.step(FEEDS, RATE)
    assert pointers(training) == before


def test_in_place_there_is_one_buffer_for_each_state_and_else_two():
    states = PROGRAM.catalogue.state
    assert len(pointers(stepper(PROGRAM))) == len(states)
    moving = sum(entry.next is not None for entry in states)
    assert len(pointers(stepper(PROGRAM, in_place=False))) == len(states) + moving


def test_the_program_is_not_written_to(training):
    before = {name: np.array(array) for name, array in PROGRAM.initial.items()}
    training.step(FEEDS, RATE)
    assert_same_bits(before, {n: np.asarray(a) for n, a in PROGRAM.initial.items()})


def test_two_steppers_share_nothing():
    one, two = stepper(PROGRAM), stepper(PROGRAM)
    one.step(FEEDS, RATE)
    assert_same_bits(two.state(), {n: np.asarray(a) for n, a in PROGRAM.initial.items()})


def test_state_is_a_copy(training):
    state = training.state()
    state["cw"][:] = 7
    training.get("cw")[:] = 8
    assert training.get("cw").tobytes() == PROGRAM.initial["cw"].tobytes()


def test_state_without_a_copy_is_read_on_access(training):
    state = training.state(copy=False)
    assert list(state) == list(training.state())
    training.step(FEEDS, RATE)
    assert_same_bits(state, training.state())
    for name, array in training.state().items():
        assert form_of(state, name) == (array.shape, array.dtype)
    assert "cw" in state
    assert "unknown" not in state
    with pytest.raises(KeyError):
        state["unknown"]


def test_writing_the_state_copies_one_tensor_at_a_time(tmp_path):
    layers, size = 16, 64 * 64 * 4  # bytes
    names = [f"w{i}" for i in range(layers)]
    nodes = "".join(f"h{i + 1} = MatMul(h{i}, {name})\n" for i, name in enumerate(names))
    inputs = ", ".join(f"float[64,64] {name}" for name in names)
    model = text_model(
        f"""<ir_version: 10, opset_import: ["" : 18]>
        g (float[N,64] x, {inputs}) => (float[N,64] y) {{
            h0 = Identity(x) {nodes} y = Identity(h{layers})
        }}""",
        **{name: np.eye(64, dtype=np.float32) for name in names},
    )
    training = stepper(build_program(model, ProgramConfig(optimizer=Adam())))
    tracemalloc.start()
    try:
        write_tensors(tmp_path / "state.safetensors", training.state(copy=False))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert (tmp_path / "state.safetensors").stat().st_size > 3 * layers * size
    assert peak < layers * size


def test_state_comes_in_the_order_of_the_catalogue(training):
    assert list(training.state()) == [entry.name for entry in PROGRAM.catalogue.state]


@pytest.mark.parametrize("steps", [0, 1, 2, 3])
def test_a_loaded_state_goes_on_with_the_same_bits(training, steps):
    for i in range(steps):
        training.step(batch_for(PROGRAM, 4, seed=i), RATE)
    saved = training.state()
    expected = [training.step(batch_for(PROGRAM, 4, seed=9 + i), RATE) for i in range(3)]
    final = training.state()
    for in_place in (True, False):
        again = stepper(PROGRAM, in_place=in_place)
        again.step({**FEEDS, "x": FEEDS["x"] * np.inf}, RATE)  # something else was here before
        again.load_state(saved)
        found = [again.step(batch_for(PROGRAM, 4, seed=9 + i), RATE) for i in range(3)]
        assert [r.loss for r in found] == [r.loss for r in expected]
        assert [r.applied_steps for r in found] == [r.applied_steps for r in expected]
        assert [r.total_skips for r in found] == [0, 0, 0]
        assert_same_bits(again.state(), final)


@pytest.mark.parametrize("steps", [0, 1, 2])
def test_set_and_get(training, steps):
    for _ in range(steps):
        training.step(FEEDS, RATE)
    value = weights(3, 4, seed=42)
    training.set("fw", value)
    assert training.get("fw").tobytes() == value.tobytes()
    answers = training.evaluator().evaluate(FEEDS)
    training.step(FEEDS, {"learning_rate": 0.0})
    assert training.get("fw").tobytes() == value.tobytes()
    assert np.isfinite(answers["loss"])


def test_set_converts_the_dtype_and_layout(training):
    value = np.asfortranarray(np.arange(12).reshape(3, 4))
    training.set("fw", value)
    np.testing.assert_array_equal(training.get("fw"), value)


def test_set_copies(training):
    value = weights(3, 4, seed=42)
    training.set("fw", value)
    value[:] = 0
    assert training.get("fw").all()


def test_counters_that_are_set_are_followed(training):
    training.set("ortboost/total_skips", np.array(5))
    training.set("ortboost/step", np.array(7))
    result = training.step(FEEDS, RATE)
    assert (result.total_skips, result.applied_steps) == (5, 8)


@pytest.mark.parametrize("shape", [(4, 3), (12,), (1, 3, 4), ()])
def test_another_shape_is_refused(training, shape):
    with pytest.raises(UsageError) as info:
        training.set("fw", np.zeros(shape, np.float32))
    assert_three_lines(info.value)
    assert training.get("fw").tobytes() == PROGRAM.initial["fw"].tobytes()


@pytest.mark.parametrize("value", [np.full((3, 4), "a"), np.full((3, 4), 1j), [[1], [2, 3]], None])
def test_what_holds_no_numbers_is_no_state(training, value):
    with pytest.raises(UsageError) as info:
        training.set("fw", value)
    assert_three_lines(info.value)


@pytest.mark.parametrize("value", [1.7, np.nan, 1e30])
def test_a_counter_is_a_whole_number(training, value):
    with pytest.raises(UsageError, match="do not fit into int64") as info:
        training.set("ortboost/step", np.array(value))
    assert_three_lines(info.value)
    assert training.get("ortboost/step") == 0


def test_an_unknown_state_is_refused(training):
    for call in (lambda: training.get("fww"), lambda: training.set("fww", np.zeros(1))):
        with pytest.raises(UsageError) as info:
            call()
        assert_three_lines(info.value)
        assert "'fw'" in info.value.fix


@pytest.mark.parametrize("how", ["missing", "extra", "shape", "dtype"])
def test_a_state_that_does_not_fit_changes_nothing(training, how):
    training.step(FEEDS, RATE)
    before = training.state()
    state = {name: np.zeros_like(array) for name, array in before.items()}
    if how == "missing":
        del state["fw"]
    elif how == "extra":
        state["more"] = np.zeros(1)
    else:
        state["fw"] = state["fw"].T.copy() if how == "shape" else state["fw"].astype(np.float64)
    with pytest.raises(FileError) as info:
        training.load_state(state)
    assert_three_lines(info.value)
    assert_same_bits(training.state(), before)


# ---- feeds --------------------------------------------------------------------------------------

BAD_FEEDS = {
    "missing": {"labels": FEEDS["labels"]},
    "dtype": {**FEEDS, "x": FEEDS["x"].astype(np.float64)},
    "rank": {**FEEDS, "x": FEEDS["x"][0]},
    "shape": {**FEEDS, "x": FEEDS["x"][:, :, :5]},
    "lengths": {**FEEDS, "labels": FEEDS["labels"][:-1]},
    "label_dtype": {**FEEDS, "labels": FEEDS["labels"].astype(np.float32)},
    "bytes": {**FEEDS, "x": np.ones_like(FEEDS["x"], np.uint8)},
    "label_range": {**FEEDS, "labels": np.full_like(FEEDS["labels"], 3)},
}


@pytest.mark.parametrize("case", BAD_FEEDS)
def test_a_wrong_batch_changes_nothing(training, case, capfd):
    training.step(FEEDS, RATE)
    before = training.state()
    with pytest.raises(UsageError) as info:
        training.step(BAD_FEEDS[case], RATE)
    assert_three_lines(info.value)
    assert_same_bits(training.state(), before)
    expected = stepper(PROGRAM)
    expected.step(FEEDS, RATE)
    assert training.step(FEEDS, RATE).loss == expected.step(FEEDS, RATE).loss


@pytest.mark.parametrize(
    ("feeds", "hyper", "name"), [((FEEDS["x"], 1), RATE, "feeds"), (FEEDS, 0.1, "hyper")]
)
def test_what_is_no_mapping_is_refused(training, feeds, hyper, name):
    with pytest.raises(TypeError, match=f"'{name}' is") as info:
        training.step(feeds, hyper)
    assert_three_lines(info.value)


@pytest.mark.parametrize("dtype", [np.int32, np.uint8])
def test_shorter_numbers_of_the_same_kind_are_converted(training, dtype):
    expected = stepper(PROGRAM)
    expected.step({**FEEDS, "x": FEEDS["x"].astype(np.float16).astype(np.float32)}, RATE)
    training.step(
        {"x": FEEDS["x"].astype(np.float16), "labels": FEEDS["labels"].astype(dtype)}, RATE
    )
    assert_same_bits(training.state(), expected.state())
    feeds = {**FEEDS, "labels": FEEDS["labels"].astype(dtype)}
    assert (
        training.evaluator().evaluate(feeds)["loss"] == expected.evaluator().evaluate(FEEDS)["loss"]
    )


def test_feeds_that_are_no_input_are_ignored(training):
    assert np.isfinite(training.step({**FEEDS, "index": np.arange(4)}, RATE).loss)


def test_feeds_that_are_no_input_are_no_part_of_an_error(training):
    """Not even if they have no dtype: the error would be one of its own."""
    narrow = {**FEEDS, "x": FEEDS["x"][..., :5], "files": ["a.png"]}
    for call in (
        lambda: training.step(narrow, RATE),
        lambda: training.evaluator().evaluate(narrow),
    ):
        with pytest.raises(UsageError, match="could not run the") as info:
            call()
        assert_three_lines(info.value)
        assert "a.png" not in str(info.value)


def test_a_length_that_the_exporter_fixed_is_suspected():
    """torch's TorchScript exporter writes that of the example into a Reshape of attention."""
    net = text_model(
        """<ir_version: 10, opset_import: ["" : 18]>
        net (float[N,S] x, float[7,3] w) => (float[M,3] y)
          <int64[2] shape = {-1, 7}> { s = Reshape(x, shape) y = MatMul(s, w) }""",
        w=weights(7, 3),
    )
    training = stepper(build_program(net, ProgramConfig(loss=LossConfig("mse"))))
    with pytest.raises(UsageError, match="could not run") as info:
        training.step({"x": np.zeros((3, 5), np.float32), "labels": np.zeros((3, 3), "f")}, RATE)
    assert "may have fixed a length" in info.value.fix


@pytest.mark.parametrize(
    "rates", [{}, {"learning_rate/head": 0.1}, {"learning_rate": 0.1, "learning_rate/haed": 0.1}]
)
def test_wrong_learning_rates(rates):
    training = stepper(GROUPED)
    with pytest.raises(UsageError) as info:
        training.step(batch_for(GROUPED, 4), rates)
    assert_three_lines(info.value)
    assert "learning_rate" in info.value.fix


@pytest.mark.parametrize(
    "rate", [None, np.nan, np.inf, 1e39, "0.1", [0.1, 0.2], 1j, np.zeros(0), object()]
)
def test_a_learning_rate_is_one_finite_number(training, rate):
    before = training.state()
    with pytest.raises(UsageError, match=r"learning.rate|An array holds|do not fit") as info:
        training.step(FEEDS, {"learning_rate": rate})
    assert_three_lines(info.value)
    assert_same_bits(training.state(), before)


@pytest.mark.parametrize("rate", [np.float64(0.1), np.array([0.1]), np.array(0.1, ">f4")])
def test_a_learning_rate_may_be_an_array_of_one(training, rate):
    expected = stepper(PROGRAM)
    expected.step(FEEDS, RATE)
    training.step(FEEDS, {"learning_rate": rate})
    assert_same_bits(training.state(), expected.state())


def test_groups_are_named():
    assert list(stepper(GROUPED).groups) == ["learning_rate", "learning_rate/head"]
    assert [spec.name for spec in stepper(GROUPED).inputs] == ["x", "labels"]


def test_arrays_in_any_layout(training):
    reference = stepper(PROGRAM)
    strided = {**FEEDS, "x": np.repeat(FEEDS["x"], 2, axis=3)[..., ::2]}
    assert not strided["x"].flags["C_CONTIGUOUS"]
    assert training.step(strided, RATE).loss == reference.step(FEEDS, RATE).loss
    for key, array in reference.evaluator().evaluate(FEEDS).items():
        np.testing.assert_array_equal(training.evaluator().evaluate(strided)[key], array)


def test_the_batch_may_be_changed_after_the_step(training):
    """Nothing of ours keeps the caller's memory from one step to the next."""
    feeds = {name: array.copy() for name, array in FEEDS.items()}
    training.step(feeds, RATE)
    state = training.state()
    feeds["x"][:] = np.nan
    assert_same_bits(training.state(), state)
    assert np.isfinite(training.step(FEEDS, RATE).loss)


def test_the_batch_is_not_written_to(training):
    feeds = {name: array.copy() for name, array in FEEDS.items()}
    for array in feeds.values():
        array.flags.writeable = False
    training.step(feeds, RATE)
    training.evaluator().evaluate(feeds)
    assert_same_bits(feeds, FEEDS)


# ---- evaluation ----------------------------------------------------------------------------------


def test_the_evaluator_sees_the_live_state_in_every_phase(training):
    evaluator = training.evaluator()
    for i in range(4):
        answers = evaluator.evaluate(FEEDS)
        other = stepper(PROGRAM)
        other.load_state(training.state())
        for key, array in other.evaluator().evaluate(FEEDS).items():
            np.testing.assert_array_equal(answers[key], array)
        training.step(batch_for(PROGRAM, 4, seed=i), RATE)
        assert evaluator.evaluate(FEEDS)["loss"] != answers["loss"]


def test_evaluation_changes_nothing(training):
    training.step(FEEDS, RATE)
    before = training.state()
    training.evaluator().evaluate(FEEDS)
    assert_same_bits(training.state(), before)


def test_evaluation_without_an_input():
    with pytest.raises(UsageError) as info:
        stepper(PROGRAM).evaluator().evaluate({"x": FEEDS["x"]})
    assert_three_lines(info.value)
    assert "labels" in info.value.what


@pytest.mark.parametrize("stray", [0.5, np.nan, 1e30])
def test_evaluation_rounds_no_label(stray):
    """NaN as an int64 would let the kernel read out of bounds."""
    labels = FEEDS["labels"].astype(np.float64)
    evaluator = stepper(PROGRAM).evaluator()
    expected = evaluator.evaluate(FEEDS)["loss"]
    assert evaluator.evaluate({**FEEDS, "labels": labels})["loss"] == expected
    labels[0] = stray
    with pytest.raises(UsageError, match=r"do not fit into int64|is not a class") as info:
        evaluator.evaluate({**FEEDS, "labels": labels})
    assert_three_lines(info.value)


def test_evaluation_of_a_wrong_shape(capfd):
    with pytest.raises(UsageError) as info:
        stepper(PROGRAM).evaluator().evaluate({**FEEDS, "x": FEEDS["x"][:, :, :5]})
    assert_three_lines(info.value)


# ---- randomness ----------------------------------------------------------------------------------


def dropout_losses(seeds, **arguments):
    program = shipped_program("transformer_tiny", loss_scale=NO_SCALE)
    training, feeds = stepper(program, **arguments), batch_for(program, 8)
    return [training.step(feeds, {"learning_rate": 0.01}, seed=seed).loss for seed in seeds]


def test_the_seed_decides_every_bit():
    assert dropout_losses([1, 2, 3]) == dropout_losses([1, 2, 3])
    assert dropout_losses([1, 2, 3]) == dropout_losses([1, 2, 3], in_place=False)


def test_a_seed_may_be_a_number_of_numpy():
    assert dropout_losses([np.int64(7), np.uint8(8)]) == dropout_losses([7, 8])


@pytest.mark.parametrize("seed", [1.5, None, "7"])
def test_a_seed_is_a_whole_number(seed):
    with pytest.raises(UsageError, match="'seed' is") as info:
        dropout_losses([seed])
    assert_three_lines(info.value)


def test_another_seed_is_another_mask():
    first = [dropout_losses([seed])[0] for seed in range(6)]
    assert len(set(first)) == 6


def test_two_sessions_do_not_disturb_each_other():
    alone = dropout_losses([1, 2])
    program = shipped_program("transformer_tiny", loss_scale=NO_SCALE)
    one, two, feeds = stepper(program), stepper(program), batch_for(program, 8)
    mixed = []
    for seed in (1, 2):
        mixed.append(one.step(feeds, {"learning_rate": 0.01}, seed=seed).loss)
        two.step(feeds, {"learning_rate": 0.01}, seed=seed + 100)
    assert mixed == alone


def test_evaluation_draws_nothing():
    program = shipped_program("transformer_tiny", loss_scale=NO_SCALE)
    evaluator, feeds = stepper(program).evaluator(), batch_for(program, 8)
    assert evaluator.evaluate(feeds)["loss"] == evaluator.evaluate(feeds)["loss"]


# ---- diagnosis -----------------------------------------------------------------------------------


def test_nothing_is_named_on_a_good_batch(training):
    assert training.nonfinite(FEEDS, RATE) == []


def test_bad_data_are_named_first_and_the_state_stays(training):
    bad = {**FEEDS, "x": FEEDS["x"].copy()}
    bad["x"][1, 0, 2, 2] = np.nan
    before = training.state()
    names = training.nonfinite(bad, RATE)
    assert_same_bits(training.state(), before)
    assert names[0] == "x"
    assert names[1] == "c"  # the output of the convolution
    assert len(names) <= 10


def test_a_bad_weight_is_named(training):
    value = training.get("fw")
    value[0, 0] = np.inf
    training.set("fw", value)
    names = training.nonfinite(FEEDS, RATE)
    assert names[0] == "fw"
    assert "logits" in names
    assert "c" not in names


# ---- labels --------------------------------------------------------------------------------------


@pytest.mark.parametrize("stray", [-1, 3, 2**40])
@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_a_label_that_is_no_class_is_named(stray, reduction):
    # The kernels read past the end of a row for such labels, without an error.
    program = build_program(small_convnet(), ProgramConfig(loss=LossConfig(reduction=reduction)))
    feeds = {**FEEDS, "labels": np.array([0, 1, stray, 2])}
    training = stepper(program)
    for call in (
        lambda: training.step(feeds, RATE),
        lambda: training.evaluator().evaluate(feeds),
    ):
        with pytest.raises(UsageError) as info:
            call()
        assert_three_lines(info.value)
        assert str(stray) in str(info.value)


def test_the_ignored_label_is_allowed():
    program = build_program(small_convnet(), ProgramConfig(loss=LossConfig(ignore_index=-1)))
    feeds = {**FEEDS, "labels": np.array([0, 1, -1, 2])}
    training = stepper(program)
    assert np.isfinite(training.step(feeds, RATE).loss)
    assert np.isfinite(training.evaluator().evaluate(feeds)["loss"])
    with pytest.raises(UsageError):
        training.step({**feeds, "labels": np.array([0, 1, -2, 2])}, RATE)


def test_class_weights_are_summed_over_the_batch(tmp_path):
    loss = LossConfig(ignore_index=1, weight=[0.5, 1.0, 3.0])
    build_program(small_convnet(), ProgramConfig(loss=loss)).save(tmp_path / "run")
    result = stepper(Program.load(tmp_path / "run")).step(
        FEEDS | {"labels": np.array([0, 1, 2, 2])}, RATE
    )
    assert (result.labels, result.label_weight) == (3, 6.5)


@pytest.mark.parametrize("make", [small_mlp, small_convnet])
def test_an_empty_batch_is_refused(make):
    # onnxruntime divides by the number of samples: the process would die of SIGFPE.
    program = build_program(make())
    feeds = {name: array[:0] for name, array in batch_for(program, 2).items()}
    training = stepper(program)
    for call in (
        lambda: training.step(feeds, RATE),
        lambda: training.evaluator().evaluate(feeds),
    ):
        with pytest.raises(UsageError) as info:
            call()
        assert_three_lines(info.value)
        assert "empty" in info.value.what


def test_one_loss_a_sample_with_batches_of_two_lengths():
    config = ProgramConfig(engine="portable", loss=LossConfig(reduction="none"))
    opened = stepper(build_program(small_mlp(), config))
    for size in (8, 3, 8, 1):
        found = opened.step(batch_for(opened.program, size), {"learning_rate": 0.01})
        assert found.losses.shape == (size,)


@pytest.mark.parametrize("engine", ENGINES)
def test_dropout_does_not_depend_on_a_stepper_in_another_thread(engine):
    """The runtime's generator is one for the process."""
    model = text_model(
        """<ir_version: 10, opset_import: ["" : 18]>
        net (float[batch,40] x, float[40,40] w, float ratio) => (float[batch,40] logits) {
          h = MatMul(x, w)
          training = Constant<value = bool {1}>()
          logits = Dropout(h, ratio, training)
        }""",
        w=np.eye(40, dtype=np.float32),
        ratio=np.float32(0.5),
    )
    program = build_program(model, ProgramConfig(engine=engine))
    feeds = batch_for(program, 200)

    def losses(number, found):
        training = stepper(program)
        for step in range(60):
            found.append(training.step(feeds, RATE, seed=1000 * number + step).loss)

    alone = [[], []]
    for number in (0, 1):
        losses(number, alone[number])
    for _ in range(3):
        beside = [[], []]
        threads = [Thread(target=losses, args=(number, beside[number])) for number in (0, 1)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert beside == alone


@pytest.mark.parametrize("reads", ["evaluate", "nonfinite", "diagnose", "get", "state"])
def test_reading_waits_while_another_thread_writes_the_state(reads):
    shared = stepper(PROGRAM)
    call = {
        "evaluate": partial(shared.evaluator().evaluate, FEEDS),
        "nonfinite": partial(shared.nonfinite, FEEDS, RATE),
        "diagnose": partial(shared.diagnose, FEEDS, RATE),
        "get": partial(shared.get, "ortboost/loss_scale"),
        "state": shared.state,
    }[reads]
    thread = Thread(target=call)
    with shared._state.lock:
        thread.start()
        thread.join(0.3)  # without waiting, none of them takes as long
        assert thread.is_alive()
    thread.join()


def test_threads_that_share_a_stepper_wait_for_each_other():
    def steps(shared, number):
        for _ in range(number):
            shared.step(FEEDS, RATE)

    alone, shared = stepper(PROGRAM), stepper(PROGRAM)
    steps(alone, 200)
    threads = [Thread(target=steps, args=(shared, 100)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert_same_bits(shared.state(), alone.state())
