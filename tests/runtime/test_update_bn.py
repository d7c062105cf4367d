"""Re-estimated running statistics: means over batches of what numpy finds in them."""

from __future__ import annotations

import numpy as np
import pytest

import ortboost as ob
from ortboost.cli import main
from ortboost.core.errors import DivergedError, UsageError
from ortboost.program.build import build_program
from ortboost.program.config import ProgramConfig
from ortboost.runtime.update_bn import BatchStatistics, momenta
from tests.support import ENGINES, assert_three_lines, small_convnet, small_mlp, text_model, weights

CLASSES = 3


def first_norm(momentum=0.9):
    """A normalization of the input itself, so that its statistics are those of the data."""
    return text_model(
        f"""<ir_version: 10, opset_import: ["" : 18]>
        net (float[batch,2,5] x, float[2] s, float[2] b, float[2] mean, float[2] var,
             float[3,10] w) => (float[batch,3] logits) {{
          [bn] n = BatchNormalization<momentum = {momentum}>(x, s, b, mean, var)
          [flat] f = Flatten(n)
          [fc] logits = Gemm<transB = 1>(f, w)
        }}""",
        s=np.ones(2, np.float32),
        b=np.zeros(2, np.float32),
        mean=np.full(2, 7.0, np.float32),
        var=np.full(2, 9.0, np.float32),
        w=weights(3, 10),
    )


def batches(count=3, last=4):
    rng = np.random.default_rng(0)
    sizes = [8] * (count - 1) + [last]
    return [{"x": (3 + 2 * rng.standard_normal((n, 2, 5))).astype(np.float32)} for n in sizes]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize(("variance", "ddof"), [("unbiased", 1), ("onnx", 0)])
def test_statistics_are_the_means_of_those_of_the_batches(engine, momentum, variance, ddof):
    """torch.optim.swa_utils.update_bn: each batch weighs the same, the short one too."""
    config = ProgramConfig(engine=engine, running_variance=variance)
    program = build_program(first_norm(momentum), config)
    assert momenta(program) == pytest.approx({"mean": momentum, "var": momentum})
    statistics = BatchStatistics(program, threads=1)
    assert [spec.name for spec in statistics.inputs] == ["x"]  # no labels
    state = dict(program.initial)
    before = {name: np.array(value) for name, value in state.items()}
    found = statistics.over(batches(), state)
    xs = [batch["x"] for batch in batches()]
    assert found.keys() == {"mean", "var"}
    np.testing.assert_allclose(
        found["mean"], np.mean([x.mean(axis=(0, 2)) for x in xs], axis=0), rtol=1e-5
    )
    np.testing.assert_allclose(
        found["var"], np.mean([x.var(axis=(0, 2), ddof=ddof) for x in xs], axis=0), rtol=1e-5
    )
    for name, value in before.items():
        np.testing.assert_array_equal(state[name], value)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_module_that_is_applied_twice_counts_twice(engine):
    """Siamese networks: torch.optim.swa_utils.update_bn averages over all applications."""
    model = text_model(
        """<ir_version: 10, opset_import: ["" : 18]>
        net (float[batch,2,5] x, float[2] s, float[2] b, float[2] mean, float[2] var,
             float[3,10] w) => (float[batch,3] logits) {
          n = BatchNormalization(x, s, b, mean, var)
          square = Mul(x, x)
          again = BatchNormalization(square, s, b, mean, var)
          d = Sub(n, again)  f = Flatten(d)  logits = Gemm<transB = 1>(f, w)
        }""",
        s=np.ones(2, np.float32),
        b=np.zeros(2, np.float32),
        mean=np.full(2, 7.0, np.float32),
        var=np.full(2, 9.0, np.float32),
        w=weights(3, 10),
    )
    program = build_program(model, ProgramConfig(engine=engine))
    assert momenta(program) == pytest.approx({"mean": 0.81, "var": 0.81})
    found = BatchStatistics(program, threads=1).over(batches(), dict(program.initial))
    seen = [a for batch in batches() for a in (batch["x"], batch["x"] ** 2)]
    np.testing.assert_allclose(
        found["mean"], np.mean([a.mean(axis=(0, 2)) for a in seen], axis=0), rtol=1e-5
    )


def test_refusals():
    with pytest.raises(UsageError, match="no running statistics") as caught:
        BatchStatistics(build_program(small_mlp(), ProgramConfig()))
    assert_three_lines(caught.value)
    statistics = BatchStatistics(build_program(first_norm(), ProgramConfig()), threads=1)
    state = build_program(first_norm(), ProgramConfig()).initial
    with pytest.raises(UsageError, match="no batches") as caught:
        statistics.over([], state)
    assert_three_lines(caught.value)
    with pytest.raises(DivergedError, match="not finite") as diverged:
        statistics.over([{"x": np.full((2, 2, 5), np.inf, np.float32)}], state)
    assert_three_lines(diverged.value)


WRONG = {
    "nothing": {},
    "float64": {"x": batches()[0]["x"].astype(np.float64)},
    "rank": {"x": batches()[0]["x"][0]},
    "lengths": {"x": batches()[0]["x"][..., :4]},
    "empty": {"x": batches()[0]["x"][:0]},
}


@pytest.mark.parametrize("case", WRONG)
def test_a_batch_that_does_not_fit_is_named(case):
    program = build_program(first_norm(), ProgramConfig())
    with pytest.raises(UsageError, match=r"input 'x'|could not run|was not fed|is empty") as caught:
        BatchStatistics(program, threads=1).over([WRONG[case]], program.initial)
    assert_three_lines(caught.value)


def test_the_byte_order_of_the_data_does_not_matter():
    program = build_program(first_norm(), ProgramConfig())
    statistics = BatchStatistics(program, threads=1)
    turned = [{"x": batch["x"].astype(">f4")} for batch in batches()]
    expected = statistics.over(batches(), program.initial)
    for name, found in statistics.over(turned, program.initial).items():
        np.testing.assert_array_equal(found, expected[name])


@pytest.fixture
def short_run(tmp_path):
    """A network after four updates, and data far away from its initial running statistics."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, CLASSES, 64)
    x = (5 + rng.standard_normal((64, 1, 6, 6)) + y[:, None, None, None]).astype(np.float32)
    data, run = tmp_path / "data.npz", tmp_path / "run"
    np.savez(data, x=x, y=y)
    ob.convert(small_convnet(), run, ob.ProgramConfig(learning_rate="0.05"))
    return run, data


def test_a_short_training_says_that_the_statistics_lag(short_run):
    run, data = short_run
    summary = ob.train(run, data, data, batch_size=16, epochs=1)
    (note,) = summary.notes
    assert "after 4 updates" in note
    assert "66% of their initial values" in note  # 0.9^4
    assert "--update-bn" in note
    assert ob.train(run, data, batch_size=16, epochs=1, overwrite=True).notes == ()
    assert ob.train(run, data, data, batch_size=16, epochs=13, overwrite=True).notes == ()


def test_eval_and_export_estimate_them(short_run, tmp_path, capsys):
    run, data = short_run
    ob.train(run, data, data, batch_size=16, epochs=2)
    before = ob.evaluate(run, data)
    after = ob.evaluate(run, data, update_bn=data, batch_size=16)
    assert abs(after["loss"] - before["loss"]) > 0.02
    assert ob.evaluate(run, data) == before  # of that measurement only
    out = tmp_path / "out.onnx"
    given = ["--verify", str(data), "--update-bn", str(data), "--batch-size", "16"]
    assert main(["export", str(run), "-o", str(out), *given]) == 0
    assert "re-estimated from" in capsys.readouterr().out
    assert ob.evaluate(out, data)["accuracy"] == after["accuracy"]
    assert main(["eval", str(run), "--data", str(data), "--update-bn", str(data), "--json"]) == 0
    assert '"loss"' in capsys.readouterr().out
    for verb in (
        ["eval", str(out), "--data", str(data)],
        ["export", str(out), "-o", f"{out}.2.onnx"],
    ):
        assert main([*verb, "--update-bn", str(data)]) == 2
        assert "Only a program" in capsys.readouterr().err


def test_the_order_of_the_data_does_not_matter_for_what_a_batch_is(short_run):
    """Sorted by class, each batch would have the statistics of one class: they are shuffled."""
    run, data = short_run
    arrays = dict(np.load(data))
    order = np.argsort(arrays["y"], kind="stable")
    ob.train(run, data, batch_size=16, epochs=1)
    found = ob.evaluate(
        run,
        data,
        update_bn={name: array[order] for name, array in arrays.items()},
        batch_size=16,
    )
    assert found["loss"] == pytest.approx(
        ob.evaluate(run, data, update_bn=data, batch_size=16)["loss"], rel=0.05
    )
