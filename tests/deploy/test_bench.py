from __future__ import annotations

import dataclasses
import itertools
import json
import math
import os
import signal
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from ortboost.cli import main
from ortboost.core.errors import ConfigError, FileError, ModelError, UsageError
from ortboost.deploy import bench as module
from ortboost.deploy.bench import bench_files, model_bytes, plan_turns, take_turns
from ortboost.deploy.bench_results import BenchConfig, Latency, Measurement, Ratio
from ortboost.deploy.bench_worker import Worker, peak_memory, time_runs
from ortboost.graph.shapes.input_config import InputConfig
from tests.support import assert_three_lines, model_path, small_mlp, text_model, weights

QUICK = BenchConfig(iters=4, rounds=2, warmup=0, loads=1, device="cpu", threads=(1,))


# ---- arithmetic ---------------------------------------------------------------------------------


def test_percentiles_by_hand_and_by_numpy():
    # Eleven samples: the p-quantile is at the position 10 p.
    assert Latency.of([float(n) for n in range(11)]) == Latency(5.0, 9.0, 9.9, 5.0, 0.0, 11)
    samples = list(np.random.default_rng(0).gamma(2.0, size=1001))
    found = Latency.of(samples)
    ordered = np.sort(samples)
    assert (found.p50, found.p90, found.p99) == (ordered[500], ordered[900], ordered[990])
    assert found.p99 == np.quantile(samples, 0.99)
    assert found.least == ordered[0]
    assert Latency.of([3.0]) == Latency(3.0, 3.0, 3.0, 3.0, 3.0, 1)


def test_a_ratio_pairs_the_samples_of_a_round():
    # The machine is four times slower in the last rounds; that hits both, and cancels.
    slow = [1.0, 1.0, 4.0, 4.0]
    first = [[1.0 * s, 1.2 * s, 9.0 * s] for s in slow]
    other = [[3.0 * s, 2.4 * s] for s in slow]  # median 2.7
    assert Ratio.of(other, first) == Ratio(*[pytest.approx(2.7 / 1.2)] * 3)
    spread = Ratio.of([[1.0], [2.0], [3.0]], [[1.0], [1.0], [1.0]])
    assert spread == Ratio(2.0, 1.5, 2.5)


def measurement(**fields):
    values = {
        "file": "m.onnx",
        "batch": 1,
        "threads": 1,
        "device": "cpu",
        "latency": Latency.of([1.0]),
        "throughput": 10.0,
        "load_seconds": 0.5,
        "bytes": 100,
        "peak_memory": 1000,
        "model_memory": 0,
    }
    return Measurement(**{**values, **fields})


def test_the_other_figures_are_ratios_too():
    assert measurement(throughput=5.0, bytes=150).over(measurement()) == {
        "load_seconds": 1.0,
        "bytes": 1.5,
        "peak_memory": 1.0,
        "model_memory": None,  # the divisor is 0
    }


# ---- turns --------------------------------------------------------------------------------------


def test_files_take_turns_and_the_first_one_changes():
    order = []

    def contestant(name):
        def run(count):
            order.append((name, count))
            return [0.0] * count

        return run

    pauses = []
    found = take_turns(
        [contestant(n) for n in "abc"], [1, 2, 3], 4, pause=lambda: pauses.append(len(order))
    )
    assert [name for name, _ in order] == list("abcbcacababc")
    assert set(order) == {("a", 1), ("b", 2), ("c", 3)}
    assert pauses == list(range(12))
    assert [[len(turn) for turn in turns] for turns in found] == [[1] * 4, [2] * 4, [3] * 4]


def test_drift_of_the_machine_cancels():
    now = [0.0]

    def contestant(cost):
        def work():
            now[0] += cost * (1 + now[0] / 50)  # ever slower

        return lambda count: time_runs(work, count, clock=lambda: now[0])

    found = take_turns([contestant(1.0), contestant(2.0)], [3, 3], 8, pause=lambda: None)
    pooled = [Latency.of(list(itertools.chain(*turns))) for turns in found]
    assert pooled[0].p99 > 4 * pooled[0].least  # the drift is there
    assert Ratio.of(found[1], found[0]).median == pytest.approx(2.0, rel=0.25)
    one_after_the_other = contestant(1.0)(24)
    assert (
        np.median(contestant(2.0)(24)) / np.median(one_after_the_other) > 4
    )  # and fools a naive one


def test_the_first_run_of_a_turn_does_not_count():
    clock = iter([0.0, 3.0, 10.0, 14.0])
    calls = []
    assert time_runs(lambda: calls.append(1), 2, clock=lambda: next(clock)) == [3.0, 4.0]
    assert len(calls) == 3


@pytest.mark.parametrize(
    ("config", "latencies", "plan"),
    [
        (BenchConfig(seconds=2, rounds=10), [0.01, 0.1], ([20, 2], 10)),
        (BenchConfig(seconds=2, rounds=10), [5.0, 0.1], ([1, 6], 3)),  # never fewer than 3 rounds
        (BenchConfig(seconds=1, rounds=10), [0.25, 0.1], ([1, 2], 4)),
        (BenchConfig(seconds=1, rounds=2), [0.25], ([2], 2)),
        (BenchConfig(iters=25, rounds=10), [9.0, 9.0], ([3, 3], 10)),
        (BenchConfig(iters=2, rounds=10), [9.0], ([1], 2)),
    ],
)
def test_runs_and_rounds(config, latencies, plan):
    assert plan_turns(config, latencies) == plan


@pytest.mark.parametrize(
    "fields",
    [
        {"batch_sizes": (4, 0)},
        {"threads": (None, 0)},
        {"warmup": -1},
        {"iters": 0},
        {"rounds": 0},
        {"loads": 0},
        {"seconds": 0.0},
        {"seconds": math.inf},
        {"seconds": math.nan},
    ],
)
def test_values_out_of_range(fields):
    with pytest.raises(ConfigError) as caught:
        BenchConfig(**fields)
    assert_three_lines(caught.value)
    assert caught.value.where == next(iter(fields))


# ---- processes ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def mlp(tmp_path_factory):
    path = tmp_path_factory.mktemp("bench") / "mlp.onnx"
    ir.save(small_mlp(), path)
    return path


def test_a_worker_runs_and_tells(mlp):
    with Worker(mlp, device="cpu", threads=1) as worker:
        assert worker.device == "cpu"
        assert [(s.name, s.dtype, s.shape) for s in worker.inputs] == [
            ("x", np.float32, ("batch", 4))
        ]
        worker.feed({"x": weights(2, 4)})
        spent = worker.run(5)
        assert len(spent) == 5
        assert all(seconds > 0 for seconds in spent)
        assert worker.peak() >= worker.baseline > 1 << 20
        process = worker._process
    assert process.returncode == 0


def test_memory_is_that_of_the_model_and_not_of_the_parent(tmp_path):
    ballast = np.ones(32 << 20, np.float64)  # 256 MiB here, which a child must not inherit
    assert peak_memory() > ballast.nbytes
    model = text_model(
        """<ir_version: 10, opset_import: ["" : 18]>
        m (float[1,4096] x, float[4096,4096] w) => (float[1,4096] y) { y = MatMul(x, w) }""",
        w=weights(4096, 4096),
    )
    path = tmp_path / "big.onnx"
    ir.save(model, path)
    config = dataclasses.replace(QUICK, iters=1)
    (found,) = bench_files([path], config)
    assert found.model_memory > 64 << 20  # 4096 * 4096 * 4 bytes of weights
    assert found.peak_memory < found.model_memory + (200 << 20)
    assert found.bytes == path.stat().st_size
    assert ballast[0] == 1


def test_files_in_one_run(mlp):
    config = dataclasses.replace(QUICK, batch_sizes=(6, 1))
    told = []
    found = bench_files([mlp, mlp], config, tell=told.append)
    assert told == ["batch 6, 1 thread ...", "batch 1, 1 thread ..."]
    assert [(m.batch, m.threads) for m in found] == [(1, 1), (1, 1), (6, 1), (6, 1)]
    for index, m in enumerate(found):
        assert m.file == str(mlp)
        assert (m.ratio is None) == (index % 2 == 0)
        assert m.latency.runs == 4
        assert m.latency.least <= m.latency.p50 <= m.latency.p90 <= m.latency.p99
        assert m.throughput == m.batch / m.latency.mean
        assert m.load_seconds > 0


def test_load_times_come_from_processes_of_their_own(mlp, monkeypatch):
    opened = []

    class Fake:
        def __init__(self, path, *, device, threads):
            opened.append(path.name)
            self.load_seconds = float(len(opened))

        __enter__ = lambda self: self  # noqa: E731
        __exit__ = lambda self, *error: None  # noqa: E731

    monkeypatch.setattr(module, "Worker", Fake)
    config = dataclasses.replace(QUICK, loads=3)
    assert module._load_times([Path("a"), Path("b")], config, 1) == [[1.0, 4.0], [2.0, 3.0]]
    assert opened == ["a", "b", "b", "a"]


def test_a_fixed_batch_is_taken_and_no_other(tmp_path, mlp):
    fixed = tmp_path / "fixed.onnx"
    model = small_mlp()
    model.graph.inputs[0].shape = ir.Shape([3, 4])
    ir.save(model, fixed)
    found = bench_files([mlp, fixed], QUICK)  # the open one follows
    assert [m.batch for m in found] == [3, 3]
    other = tmp_path / "other.onnx"
    model.graph.inputs[0].shape = ir.Shape([5, 4])
    ir.save(model, other)
    for files, sizes in (([fixed], (8,)), ([fixed, other], ())):
        with pytest.raises(UsageError, match="batch size is fixed") as caught:
            bench_files(files, dataclasses.replace(QUICK, batch_sizes=sizes))
        assert_three_lines(caught.value)
    config = dataclasses.replace(QUICK, batch_sizes=(8,), inputs=InputConfig({"x:0": 2}))
    with pytest.raises(UsageError, match="batch size is fixed at 2"):
        bench_files([mlp], config)


def test_data_feed_the_runs(mlp):
    asked = []

    def bind(inputs, samples):
        asked.append(([spec.name for spec in inputs], samples))
        return {"x": weights(10, 4)[:samples]}

    assert bench_files([mlp], dataclasses.replace(QUICK, batch_sizes=(6,)), bind=bind)[0].batch == 6
    assert asked == [(["x"], 6)]
    with pytest.raises(UsageError, match="10 samples, a batch of 11") as caught:
        bench_files([mlp], dataclasses.replace(QUICK, batch_sizes=(11,)), bind=bind)
    assert_three_lines(caught.value)


def test_external_data_count(tmp_path):
    path = tmp_path / "m.onnx"
    onnx.save(
        onnx.load(model_path("lenet5")),
        path,
        save_as_external_data=True,
        location="m.bin",
        size_threshold=1024,
    )
    size = path.stat().st_size + (tmp_path / "m.bin").stat().st_size
    assert model_bytes(path) == size > 150_000
    (found,) = bench_files([path], QUICK)
    assert found.bytes == size
    (tmp_path / "m.bin").unlink()
    with pytest.raises(FileError, match="external weights is missing") as caught:
        bench_files([path], QUICK)
    assert_three_lines(caught.value)


# ---- errors -------------------------------------------------------------------------------------


def test_files_that_are_none(tmp_path):
    torn = tmp_path / "torn.onnx"
    torn.write_bytes(model_path("lenet5").read_bytes()[:5000])
    empty = tmp_path / "empty.onnx"
    empty.touch()
    for path in (tmp_path / "none.onnx", tmp_path, torn, empty):
        with pytest.raises(FileError) as caught:
            bench_files([path], QUICK)
        assert_three_lines(caught.value)
        assert str(path) in caught.value.where
    with pytest.raises(UsageError):
        bench_files([], QUICK)


def test_a_model_that_the_runtime_refuses(tmp_path):
    path = tmp_path / "m.onnx"
    ir.save(
        ir.from_onnx_text(
            '<ir_version: 10, opset_import: ["" : 18, "mine" : 1]> '
            "m (float[1] x) => (float[1] y) { y = mine.Odd(x) }"
        ),
        path,
    )
    with pytest.raises(ModelError, match="no operator Odd of the domain 'mine'") as caught:
        bench_files([path], QUICK)
    assert_three_lines(caught.value)


def test_inputs_that_the_runtime_refuses(tmp_path):
    path = tmp_path / "m.onnx"
    ir.save(
        ir.from_onnx_text(
            '<ir_version: 10, opset_import: ["" : 18]> '
            "m (float[n,k] x, float[k,2] w) => (float[n,2] y) { y = MatMul(x, w) }"
        ),
        path,
    )
    with pytest.raises(UsageError, match="'k' of the input 'x' is open"):
        bench_files([path], QUICK)
    config = dataclasses.replace(QUICK, inputs=InputConfig({"n": 2, "k": 3}))
    assert bench_files([path], config)[0].batch == 2  # k of w follows
    lying = lambda inputs, samples: {"x": weights(samples, 3), "w": weights(5, 2)[:samples]}  # noqa: E731
    with pytest.raises(UsageError, match="could not run the model"):
        bench_files([path], dataclasses.replace(QUICK, batch_sizes=(4,)), bind=lying)


def test_a_process_that_dies_is_reported(mlp):
    with Worker(mlp, device="cpu", threads=1) as worker:
        os.kill(worker._process.pid, signal.SIGKILL)
        with pytest.raises(ModelError, match=f"signal {signal.SIGKILL:d}") as caught:
            worker.run(1)
    assert_three_lines(caught.value)
    assert str(mlp) in caught.value.where


def test_no_process_is_left_behind_by_an_error(mlp, monkeypatch):
    started = []

    class Spy(Worker):
        def __init__(self, *arguments, **options):
            super().__init__(*arguments, **options)
            started.append(self._process)

    monkeypatch.setattr(module, "Worker", Spy)
    with pytest.raises(UsageError):
        bench_files([mlp, Path(mlp)], dataclasses.replace(QUICK, inputs=InputConfig({"y": 1})))
    assert len(started) == 2
    assert all(process.poll() is not None for process in started)


def test_dimensions_values_and_batch_axes_of_a_file(tmp_path, capsys):
    """A recurrent state with the batch in the middle, an open length, and a scalar input."""
    text = """
        <ir_version: 9, opset_import: ["" : 18]>
        net (float[2, n, f] h, float k) => (float[2, n, f] y) { y = Mul(h, k) }
    """
    path = tmp_path / "state.onnx"
    ir.save(text_model(text), path)
    words = ["bench", str(path), "--iters", "3", "--rounds", "1", "--loads", "1", "--warmup", "0"]
    words += ["--device", "cpu", "--threads", "1", "--batch-size", "5", "--input", "k=2"]
    assert main([*words, "--json"]) == 2
    assert "'n'" in capsys.readouterr().err  # the first dimension, 2, counts as the batch
    assert main([*words, "--batch-axis", "h=1", "--json"]) == 2
    assert "'f'" in capsys.readouterr().err
    assert main([*words, "--dim", "f=8", "--batch-axis", "h=1", "--json", "-q"]) == 0
    assert json.loads(capsys.readouterr().out)["results"][0]["batch"] == 5
    np.savez(tmp_path / "few.npz", h=np.zeros((2, 3, 8), np.float32))
    capsys.readouterr()
    words += ["--dim", "f=8", "--batch-axis", "h=1", "--data", str(tmp_path / "few.npz")]
    assert main([*words, "-q"]) == 2
    assert "3 samples" in capsys.readouterr().err
