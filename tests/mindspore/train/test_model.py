from __future__ import annotations

import re
import time

import numpy as np
import pytest

from ortboost import amp, nn
from ortboost.core.errors import FileError, OrtBoostError
from ortboost.mindspore.core.parameter import Parameter
from ortboost.mindspore.core.serialization import (
    load_checkpoint,
    load_param_into_net,
    save_checkpoint,
)
from ortboost.mindspore.train.callbacks import (
    Callback,
    CheckpointConfig,
    EarlyStopping,
    LossMonitor,
    ModelCheckpoint,
    RunContext,
    TimeMonitor,
)
from ortboost.mindspore.train.model import Model
from ortboost.mindspore.train.run_context import CallbackParam
from ortboost.training.data.sources import ArraySource
from tests.mindspore.nn import golden
from tests.support import assert_three_lines

DATA = list(golden.batches("mlp", 10))


def make(metrics=None, manager=None, lr=0.05, **kwargs):
    net = golden.network("mlp")
    loss = nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean")
    optimizer = nn.Momentum(net.trainable_params(), learning_rate=lr, momentum=0.9)
    return Model(net, loss, optimizer, metrics, loss_scale_manager=manager, **kwargs), net


class Recorder(Callback):
    """Notes each call with epoch and step."""

    def __init__(self):
        self.calls = []

    def __getattribute__(self, name):
        if name.startswith("on_"):

            def note(context):
                args = context.original_args()
                self.calls.append((name, args.get("cur_epoch_num"), args.cur_step_num))

            return note
        return super().__getattribute__(name)


@pytest.mark.parametrize("manager", [None, amp.DynamicLossScaleManager(2**12, 2, 1000)])
def test_train_is_the_step_cell_in_a_loop(manager):
    model, net = make(manager=manager)
    assert model.train(1, DATA) is None
    file = golden.read("train_mlp")
    errors = golden.errors(net, file["meta"]["layout"]["mlp"], file["momentum/wd0/params"][-1])
    assert max(errors.values()) < 1e-6


class Columns:
    """A MindSpore data set, as far as it matters."""

    def get_dataset_size(self):
        return len(DATA)

    def create_tuple_iterator(self, num_epochs=1):
        return iter(DATA)


@pytest.mark.parametrize(
    "dataset",
    [
        lambda: DATA,
        lambda: iter(DATA),
        lambda: lambda: iter(DATA),
        lambda: [{"x": x, "labels": y} for x, y in DATA],
        lambda: [{"y": y, "x": x} for x, y in DATA],
        lambda: [{"image": x, "label": y} for x, y in DATA],
        lambda: [{"label": y, "image": x} for x, y in DATA],
        Columns,
        lambda: ArraySource(
            {"x": np.concatenate([x for x, _ in DATA]), "y": np.concatenate([y for _, y in DATA])},
            8,
        ),
    ],
)
def test_data_may_come_in_many_forms(dataset):
    model, net = make()
    model.train(1, dataset())
    reference, other = make()
    reference.train(1, DATA)
    assert golden.values(net).keys() == golden.values(other).keys()
    for name, value in golden.values(net).items():
        np.testing.assert_array_equal(value, golden.values(other)[name])


def test_a_generator_serves_one_epoch():
    with pytest.raises(ValueError, match="only once"):
        make()[0].train(2, iter(DATA))


def test_data_is_told_the_epoch():
    told = []

    class Shuffled(list):
        def set_epoch(self, epoch):
            told.append(epoch)

    make()[0].train(2, Shuffled(DATA))
    assert told == [0, 1]


@pytest.mark.parametrize(
    "dataset",
    [None, 3, "data", {"x": 1}, [1], [{"a": 1, "b": 2, "c": 3}], [(1, 2, 3)], lambda: None],
)
def test_what_is_no_data(dataset):
    with pytest.raises((TypeError, ValueError)) as raised:
        make()[0].train(1, dataset)
    assert isinstance(raised.value, OrtBoostError)


def test_eval_and_predict_see_the_trained_weights():
    model, net = make(metrics={"accuracy", "loss", "top_5_accuracy"})
    before = model.eval(DATA)
    model.train(20, DATA)
    after = model.eval(DATA)
    assert list(after) == ["accuracy", "loss", "top_5_accuracy"]
    assert before["accuracy"] < 0.5 < 0.95 < after["accuracy"]
    scores = np.concatenate([model.predict(x) for x, _ in DATA])
    labels = np.concatenate([y for _, y in DATA])
    assert after["accuracy"] == (scores.argmax(1) == labels).mean()
    np.testing.assert_array_equal(model.predict(DATA[0][0]), net(DATA[0][0]))


def test_callbacks_are_called_in_order():
    model, _ = make(metrics={"acc"})
    recorder = Recorder()
    model.fit(2, DATA[:2], DATA[:1], valid_frequency=2, callbacks=[recorder])
    step = ["on_train_step_begin", "on_train_step_end"]
    evaluation = [
        f"on_eval_{w}"
        for w in ("begin", "epoch_begin", "step_begin", "step_end", "epoch_end", "end")
    ]
    assert [name for name, _, _ in recorder.calls] == [
        "on_train_begin",
        *["on_train_epoch_begin", *step, *step, "on_train_epoch_end"],
        *["on_train_epoch_begin", *step, *step, *evaluation, "on_train_epoch_end"],
        "on_train_end",
    ]
    ends = [call for call in recorder.calls if call[0] == "on_train_step_end"]
    assert [call[1:] for call in ends] == [(1, 1), (1, 2), (2, 3), (2, 4)]


def test_short_names_are_called_by_the_long_ones():
    class Old(Callback):
        seen = 0

        def step_end(self, run_context):
            self.seen += 1

    old = Old()
    make()[0].train(1, DATA[:3], callbacks=old)
    assert old.seen == 3


def test_a_callback_can_stop_the_run():
    class Stop(Callback):
        def on_train_step_end(self, run_context):
            args = run_context.original_args()
            assert (args.parallel_mode, args.device_number) == ("stand_alone", 1)
            if run_context.original_args().cur_step_num == 3:
                run_context.request_stop()

    model, _ = make(metrics={"acc"})
    recorder = Recorder()
    model.fit(5, DATA, DATA, callbacks=[Stop(), recorder])
    assert model.train_network.optimizer.global_step == 3
    assert [name for name, _, _ in recorder.calls][-2:] == ["on_train_epoch_end", "on_train_end"]
    assert "on_eval_begin" not in [name for name, _, _ in recorder.calls]


def test_callbacks_know_the_epoch_and_the_results_in_a_validation():
    seen = []

    class Results(Callback):
        def on_train_step_begin(self, run_context):
            assert "eval_results" not in run_context.original_args()

        def on_eval_end(self, run_context):
            args = run_context.original_args()
            assert args.metrics == {"acc": args.eval_results["acc"]}
            assert args.valid_dataset is DATA
            assert args.dataset_sink_mode is False
            seen.append((args.mode, args.cur_epoch_num, args.epoch_num, args.cur_step_num))
            seen.append(args.eval_results["eval_loss"])

        def on_train_epoch_end(self, run_context):
            args = run_context.original_args()
            assert args.eval_results["eval_loss"] == seen[-1]
            assert args.metrics == {"acc": args.eval_results["acc"]}
            assert (args.mode, args.dataset_sink_mode) == ("train", False)

    model, net = make(metrics={"acc"})
    model.fit(2, DATA[:2], DATA, callbacks=Results())
    loss = nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean")
    wanted = np.mean([loss(net(x), y) for x, y in DATA])
    assert seen[::2] == [("eval", 1, 2, len(DATA)), ("eval", 2, 2, len(DATA))]
    assert seen[-1] == pytest.approx(wanted)


def test_early_stopping_can_watch_the_loss_of_validations_without_a_metric_for_it():
    model, _ = make(metrics={"acc"}, lr=1.0)
    model.fit(20, DATA[:1], DATA[:1], callbacks=EarlyStopping(min_delta=100.0, patience=2))
    assert model.train_network.optimizer.global_step == 3


@pytest.mark.parametrize("drop", [True, False])
def test_the_manager_of_the_loss_scale_is_told_of_overflows(drop):
    class Told(amp.FixedLossScaleManager):
        told = ()

        def update_loss_scale(self, overflow):
            self.told = (*self.told, overflow)

    x, labels = DATA[0]
    bad = (np.full_like(x, np.nan), labels)
    manager = Told(1.0, drop)
    make(manager=manager)[0].train(1, [DATA[0], bad, DATA[1]])
    assert manager.told == ((False, True, False) if drop else ())
    dynamic = amp.DynamicLossScaleManager(64, 2, 10)
    make(manager=dynamic)[0].train(1, [bad])
    assert dynamic.get_loss_scale() == 32


def test_callbacks_are_entered_and_left_even_after_an_error():
    class Resource(Callback):
        calls = ()

        def __enter__(self):
            self.calls += ("enter",)
            return self

        def __exit__(self, *error):
            self.calls += ("exit",)

        def on_train_end(self, run_context):
            raise RuntimeError("in the end")

    resource = Resource()
    with pytest.raises(RuntimeError, match="in the end"):
        make()[0].train(1, DATA[:1], callbacks=[resource])
    assert resource.calls == ("enter", "exit")


def test_initial_epoch_counts_on():
    recorder = Recorder()
    make()[0].train(3, DATA[:2], callbacks=recorder, initial_epoch=1)
    assert recorder.calls[0][1:] == (1, 2)
    assert recorder.calls[-1][1:] == (3, 6)


def test_monitors_print_mindspores_lines(capsys):
    model, _ = make(metrics={"accuracy"})
    model.fit(1, DATA[:2], DATA[:2], callbacks=[LossMonitor(2), TimeMonitor()])
    lines = capsys.readouterr().out.splitlines()
    assert re.fullmatch(r"epoch: 1 step: 2, loss is \d+\.\d+", lines[0])
    assert re.fullmatch(r"Eval result: epoch 1, metrics: \{'accuracy': [\d.]+\}", lines[1])
    assert re.fullmatch(r"Train epoch time: [\d.]+ ms, per step time: [\d.]+ ms", lines[2])


def test_time_monitor_prints_the_time_spent_on_waiting_for_data(capsys):
    def slow():
        for batch in DATA[:2]:
            time.sleep(0.05)
            yield batch

    make()[0].train(1, slow, callbacks=TimeMonitor(data_time=True))
    line = capsys.readouterr().out
    found = re.fullmatch(r"Train .* per step time: ([\d.]+) ms \(data time: ([\d.]+) ms\)\n", line)
    assert 50 <= float(found[2]) <= float(found[1])


def test_a_loss_that_is_not_finite_stops_unless_the_step_was_skipped():
    x, labels = DATA[0]
    bad = [(np.full_like(x, np.nan), labels)]
    with pytest.raises(ValueError, match="nan"):
        make()[0].train(1, bad, callbacks=LossMonitor(0))
    model, _ = make(manager=amp.DynamicLossScaleManager(64, 2, 10))
    model.train(1, bad, callbacks=LossMonitor(0))
    assert float(model.train_network.scale_sense.asnumpy()) == 32


@pytest.mark.parametrize("change", [lambda y: y + 100, lambda y: y[:1]])
def test_labels_that_do_not_fit_are_a_value_error_without_options(change):
    x, y = DATA[0]
    with pytest.raises(ValueError, match=r".") as caught:
        make()[0].train(1, [(x, change(np.asarray(y)))])
    assert_three_lines(caught.value)
    assert "--" not in caught.value.in_options()
    assert "Config" not in str(caught.value)


def test_checkpoints_are_kept_named_and_loaded(tmp_path):
    model, net = make()
    config = CheckpointConfig(save_checkpoint_steps=2, keep_checkpoint_max=2)
    saver = ModelCheckpoint("mlp", str(tmp_path / "new"), config)
    model.train(2, DATA[:3], callbacks=saver)
    assert sorted(f.name for f in (tmp_path / "new").iterdir()) == [
        "mlp-2_1.safetensors",
        "mlp-2_3.safetensors",
    ]
    assert saver.latest_ckpt_file_name.endswith("mlp-2_3.safetensors")
    other = golden.network("mlp")
    loaded = load_checkpoint(saver.latest_ckpt_file_name)
    assert load_param_into_net(other, loaded) == ([], [])
    for name, value in golden.values(net).items():
        np.testing.assert_array_equal(value, other.parameters_dict()[name].asnumpy())


def test_checkpoints_of_another_run_are_kept(tmp_path):
    for _ in range(3):
        make()[0].train(1, DATA[:1], callbacks=ModelCheckpoint("mlp", str(tmp_path)))
    ModelCheckpoint("ml", str(tmp_path)).on_train_begin(RunContext({"cur_step_num": 0}))
    names = sorted(file.stem for file in tmp_path.iterdir())
    assert names == ["mlp-1_1", "mlp_1-1_1", "mlp_2-1_1"]


def test_loading_tells_what_does_not_fit(tmp_path):
    net = golden.network("mlp")
    path = save_checkpoint(net, tmp_path / "weights")
    assert path.name == "weights.safetensors"
    assert load_checkpoint(tmp_path / "weights").keys() == load_checkpoint(path).keys()
    loaded = load_checkpoint(path, net=net)
    loaded["more"] = loaded.pop("fc1.bias")
    with pytest.warns(UserWarning, match=r"1 parameters .* not loaded, for example 'fc1\.bias'"):
        assert load_param_into_net(net, loaded) == (["fc1.bias"], ["more"])
    with pytest.raises(ValueError, match=r"fc1\.bias"):
        load_param_into_net(net, loaded, strict_load=True)
    before, short = net.trainable_params()[0].asnumpy(), load_checkpoint(path)
    short = {n: Parameter(np.ones(p.shape, np.float32), n) for n, p in short.items()}
    short["fc2.bias"] = Parameter(np.ones(3, np.float32), "fc2.bias")
    with pytest.raises(ValueError, match=r"fc2\.bias"):
        load_param_into_net(net, short)
    np.testing.assert_array_equal(net.trainable_params()[0].asnumpy(), before)  # nothing is loaded
    with pytest.raises(TypeError):
        save_checkpoint(1, path)
    with pytest.raises(TypeError):
        load_param_into_net(net, 1)
    with pytest.raises(TypeError, match="set_data got str"):
        load_param_into_net(net, {**loaded, "fc1.bias": "no array"})


def test_values_from_mindspore_itself_are_loaded():
    class Foreign:  # what MindSpore's load_checkpoint returns
        def __init__(self, value):
            self.asnumpy = lambda: value

    net = golden.network("mlp")
    values = {p.name: p.asnumpy() + 1 for p in net.get_parameters()}
    given = {name: Foreign(value) for name, value in values.items()}
    assert load_param_into_net(net, {**given, "epoch_num": 3}) == ([], ["epoch_num"])
    for p in net.get_parameters():
        np.testing.assert_array_equal(p.asnumpy(), values[p.name])


def test_parts_of_a_checkpoint(tmp_path):
    net, file = golden.network("mlp"), tmp_path / "weights"
    save_checkpoint(net, file, append_dict={"epoch_num": 3}, choice_func=lambda n: "fc1" in n)
    loaded = load_checkpoint(file)
    assert set(loaded) == {"fc1.weight", "fc1.bias", "epoch_num"}
    assert loaded["epoch_num"].asnumpy() == 3
    assert set(load_checkpoint(file, choice_func=lambda n: "bias" in n)) == {"fc1.bias"}
    with pytest.raises(ValueError, match="fc2"):
        load_checkpoint(file, net, strict_load=True)
    bias = loaded["fc1.bias"]
    save_checkpoint([{"name": "a", "data": bias}, {"name": "b", "data": bias.data.T}], file)
    np.testing.assert_array_equal(load_checkpoint(file)["b"].asnumpy(), bias.asnumpy())
    save_checkpoint(net.trainable_params(), file, choice_func=lambda n: "fc1" in n)  # as documented
    assert set(load_checkpoint(file)) == {"fc1.weight", "fc1.bias"}
    for wrong in ([bias, "fc1.bias"], [{"name": "a"}], [bias.data]):
        with pytest.raises(TypeError, match="list"):
            save_checkpoint(wrong, file)
    load_param_into_net(net, load_checkpoint(save_checkpoint(net, file)), remove_redundancy=False)


def test_early_stopping_ends_the_run_and_restores(capsys):
    model, net = make(metrics={"loss"}, lr=[0.05] * 3 + [30.0] * 100)
    best = []

    class Keep(Callback):
        def on_train_epoch_end(self, run_context):
            best.append(golden.values(net))

    stopping = EarlyStopping(patience=2, verbose=True, restore_best_weights=True)
    model.fit(20, DATA[:1], DATA[:1], callbacks=[Keep(), stopping])
    assert len(best) == 5
    assert "early stopping" in capsys.readouterr().out
    for name, value in golden.values(net).items():
        np.testing.assert_array_equal(value, best[2][name])
    with pytest.raises(ValueError, match="nothing_like_it"):
        model.fit(1, DATA[:1], DATA[:1], callbacks=EarlyStopping("nothing_like_it"))


def test_early_stopping_without_a_validation_warns():
    with pytest.warns(UserWarning, match="no validation with 'eval_loss'"):
        make(metrics={"loss"})[0].train(2, DATA[:1], callbacks=EarlyStopping())


def test_early_stopping_can_watch_the_training_loss_and_a_baseline():
    model, _ = make()
    model.train(9, DATA[:1], callbacks=EarlyStopping("loss", patience=3, baseline=1e-9))
    assert model.train_network.optimizer.global_step == 3


def test_early_stopping_restores_the_best_weights_below_the_baseline():
    """None is better than the baseline, but one is the best."""
    model, net = make(metrics={"loss"}, lr=[0.05] * 2 + [30.0] * 100)
    best = []

    class Keep(Callback):
        def on_train_epoch_end(self, run_context):
            best.append(golden.values(net))

    stopping = EarlyStopping(patience=4, baseline=0.0, restore_best_weights=True)
    model.fit(20, DATA[:1], DATA[:1], callbacks=[Keep(), stopping])
    assert len(best) == 4
    for name, value in golden.values(net).items():
        np.testing.assert_array_equal(value, best[1][name])


@pytest.mark.parametrize("name", ["f1", "topk", "dice", "acc", "mse", "eval_loss", "perplexity"])
def test_early_stopping_knows_the_direction_as_mindspore_does(name):
    rising = name in ("f1", "topk", "dice", "acc")
    stopping = EarlyStopping(name, patience=2)
    network = make()[1]
    for epoch, value in enumerate([0.1, 0.2, 0.3] if rising else [0.3, 0.2, 0.1], 1):
        args = CallbackParam(eval_results={name: value}, network=network, cur_epoch_num=epoch)
        context = RunContext(args)
        stopping.on_train_epoch_end(context)
        assert not context.get_stop_requested()


def test_an_evaluation_network_of_ones_own():
    _, net = make()
    loss = nn.MSELoss()
    own = Model(
        net,
        loss,
        nn.SGD(net.trainable_params()),
        metrics={"mean": nn.Loss()},
        eval_network=nn.WithLossCell(net, loss),
        eval_indexes=None,
    )
    x, labels = DATA[0]
    target = np.eye(10, dtype=np.float32)[labels]
    assert own.eval([(x, target)])["mean"] == pytest.approx(float(loss(net(x), target)))


def test_a_metric_selects_among_what_mindspore_passes_to_it():
    """Prediction and label; without indexes of an evaluation network of one's own, its outputs."""
    model, net = make(metrics={"plain": nn.Accuracy(), "same": nn.Accuracy().set_indexes([0, 1])})
    found = model.eval(DATA)
    assert found["plain"] == found["same"]
    cell = nn.WithEvalCell(net, nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean"))
    metrics = {"acc": nn.Accuracy().set_indexes([1, 2])}
    own = Model(net, metrics=metrics, eval_network=cell, eval_indexes=[0, 1, 2])
    with pytest.raises(ValueError, match="2 outputs, but index 2"):
        own.eval(DATA)


def test_an_evaluation_network_without_indices_passes_all_outputs():
    net = make()[1]
    loss = nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean")
    metrics = {"acc": nn.Accuracy().set_indexes([1, 2]), "loss": nn.Loss().set_indexes([0])}
    own = Model(net, loss, metrics=metrics, eval_network=nn.WithEvalCell(net, loss))
    assert own.eval(DATA) == Model(net, loss, metrics={"acc", "loss"}).eval(DATA)


def test_an_index_beyond_the_outputs_is_refused():
    model, net = make(metrics={"acc"})
    own = Model(net, model._loss_fn, metrics={"acc"}, eval_indexes=[0, 1, 3])
    with pytest.raises(ValueError, match="3 outputs, but index 3") as raised:
        own.eval(DATA)
    assert isinstance(raised.value, OrtBoostError)


def test_a_training_cell_is_a_network_too():
    net = golden.network("mlp")
    step = nn.TrainOneStepCell(
        nn.WithLossCell(net, nn.SoftmaxCrossEntropyWithLogits(True, "mean")),
        nn.SGD(net.trainable_params()),
    )
    model = Model(step)
    model.train(1, DATA[:2])
    assert (step.optimizer.global_step, model.predict_network) == (2, net)


def test_frequency_may_be_a_list(capsys):
    make(metrics={"acc"})[0].fit(4, DATA[:1], DATA[:1], valid_frequency=[1, 4])
    assert re.findall(r"epoch (\d)", capsys.readouterr().out) == ["1", "4"]


@pytest.mark.parametrize(
    ("call", "kind"),
    [
        (lambda m: m.train(1, DATA, dataset_sink_mode=True, sink_size=3), NotImplementedError),
        (lambda m: m.fit(1, DATA, DATA, valid_frequency=[1.5]), TypeError),
        (lambda m: m.fit(1, DATA, DATA, valid_frequency=[0]), ValueError),
        (lambda m: EarlyStopping(mode="up"), ValueError),
        (lambda m: Model(m.predict_network, metrics={"acc"}), ValueError),
        (lambda m: Model(m.predict_network, eval_indexes=[1]), ValueError),
        (lambda m: Model(m.predict_network, amp_level="O7"), ValueError),
        (lambda m: Model(m.predict_network, amp_level="O2"), ValueError),  # no optimizer
        (lambda m: Model(m.predict_network, keep_batchnorm_fp32=True), ValueError),
        (
            lambda m: Model(m.predict_network, loss_scale_manager=amp.FixedLossScaleManager()),
            ValueError,
        ),
        (lambda m: Model(m.predict_network, boost_level="O1"), ValueError),  # no optimizer
        (lambda m: Model(m.predict_network, boost_level="O3"), ValueError),
        (lambda m: Model(nn.MSELoss()), TypeError),
    ],
)
def test_refusals(call, kind):
    with pytest.raises(kind) as raised:
        call(make()[0])
    assert isinstance(raised.value, OrtBoostError)


def test_a_run_context_takes_any_dict():
    context = RunContext({"a": 1})
    assert context.original_args().a == 1
    with pytest.raises(AttributeError):
        context.original_args().b  # noqa: B018
    assert not context.get_stop_requested()


@pytest.mark.parametrize("level", ["O2", "O3"])
def test_amp_levels_train_in_mixed_precision(level):
    manager = amp.DynamicLossScaleManager(2**12, 2, 1000)
    exact, reference = make({"loss"}, manager)
    exact.train(1, DATA)
    model, net = make({"loss"}, manager, amp_level=level, keep_batchnorm_fp32=False)
    model.train(1, DATA)
    assert net.precision.compute == "fp16"
    found, expected = (m.eval(DATA)["loss"] for m in (model, exact))
    assert found == pytest.approx(expected, rel=5e-3)
    assert found != expected
    assert reference.precision.compute == "fp32"


def test_checkpoints_are_named_by_functions(tmp_path):
    model, net = make()
    other = golden.network("mlp")
    config = CheckpointConfig(
        None,
        keep_checkpoint_max=1,
        async_save=True,
        saved_network=other,
        append_info=["epoch_num", {"step_num": 10, "rate": 0.5}],
    )
    config.save_checkpoint_steps = 2
    saver = ModelCheckpoint(
        lambda run: f"s{run.cur_step_num}",
        lambda run: str(tmp_path / f"e{run.cur_epoch_num}"),
        config,
    )
    model.train(2, DATA[:2], callbacks=saver)
    assert [str(f.relative_to(tmp_path)) for f in tmp_path.rglob("*.*")] == ["e2/s4.safetensors"]
    loaded = load_checkpoint(saver.latest_ckpt_file_name)
    more = {name: float(loaded.pop(name).asnumpy()) for name in ("epoch_num", "step_num", "rate")}
    assert more == {"epoch_num": 2, "step_num": 14, "rate": 0.5}
    for name, value in golden.values(other).items():
        np.testing.assert_array_equal(value, loaded[name].asnumpy())
    assert not np.array_equal(net.trainable_params()[0].asnumpy(), loaded["fc1.weight"].asnumpy())
    with pytest.raises(ValueError, match="prefix"):
        model.train(1, DATA[:1], callbacks=ModelCheckpoint(lambda run: "a/b", str(tmp_path)))


def test_parameters_are_loaded_by_prefix(tmp_path):
    path = save_checkpoint(golden.network("mlp"), tmp_path / "weights", True, False)
    assert set(load_checkpoint(path, None, False, "fc1")) == {"fc2.weight", "fc2.bias"}
    by_both = load_checkpoint(path, filter_prefix=("fc1.b",), specify_prefix=["fc1", "x"])
    assert set(by_both) == {"fc1.weight"}
    assert len(load_checkpoint(path, specify_prefix="fc", choice_func=lambda name: False)) == 4
    for wrong in ("", [], (), ["fc1", ""], "fc"):
        with pytest.raises(ValueError, match="load_checkpoint"):
            load_checkpoint(path, filter_prefix=wrong)
    with pytest.raises(TypeError):
        load_checkpoint(path, specify_prefix=[1])


@pytest.mark.parametrize(
    "call",
    [
        lambda file: save_checkpoint(golden.network("mlp"), file, enc_key=b"0123456789abcdef"),
        lambda file: load_checkpoint(file, dec_key=b"0123456789abcdef"),
        lambda file: CheckpointConfig(keep_checkpoint_per_n_minutes=5),
        lambda file: CheckpointConfig(exception_save=True),
    ],
)
def test_arguments_that_are_not_in_this_version(call, tmp_path):
    with pytest.raises(NotImplementedError, match="not in this version") as raised:
        call(tmp_path / "weights")
    assert "0123" not in str(raised.value)


def test_a_model_is_built_by_its_first_step():
    model, _ = make(metrics={"accuracy"})
    model.build(DATA[:2], DATA[:1], epoch=2)
    with pytest.raises(TypeError, match="not a data set"):
        model.build(1)
    with pytest.raises(ValueError, match="metrics"):
        Model(golden.network("mlp")).build(valid_dataset=DATA)


def test_a_checkpoint_of_mindspore_is_answered_with_its_other_format(tmp_path):
    file = tmp_path / "net.ckpt"
    file.write_bytes(b"\n\x0bconv1.weight\x12" * 9)
    with pytest.raises(FileError, match=r"(?s)net\.ckpt.*format='safetensors'"):
        load_checkpoint(file)


def test_data_without_batches_are_refused():
    model, _ = make()
    with pytest.raises(ValueError, match="no batches") as caught:
        model.train(2, [])
    assert_three_lines(caught.value)
