"""A custom boost, docs/gradient_noise.py, and the errors of the table for others."""

from __future__ import annotations

import importlib
import json
import re
import sys
from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import onnx_ir as ir
import pytest

from ortboost import api
from ortboost.boosts import (
    Boost,
    Clip,
    DimReduce,
    GradAccumulation,
    GradFreeze,
    GroupLossScale,
    LessBN,
    LossScale,
    State,
    Thor,
    register,
    registered,
    table,
)
from ortboost.boosts.roles import PART
from ortboost.cli import main
from ortboost.core.errors import ConfigError, FileError
from ortboost.core.loss_scale import NO_SCALE
from ortboost.optimizers import OPTIMIZERS, Sgd
from ortboost.optimizers import register as register_optimizer
from ortboost.program.build import build_program
from ortboost.program.config import ProgramConfig
from ortboost.program.program import Program
from ortboost.program.split import cut_exchanges, split_program
from tests.support import (
    ENGINES,
    MODELS,
    ROOT,
    assert_same_bits,
    assert_three_lines,
    batch_for,
    model_path,
    small_mlp,
    stepper,
)

EXAMPLE = ROOT / "docs" / "gradient_noise.py"
MLP = str(model_path("mlp"))
DIGITS = MODELS / "digits.npz"
RATE = {"learning_rate": 1.0}


@pytest.fixture(autouse=True)
def own_table(monkeypatch):
    """Unregister after a test what it registered."""
    monkeypatch.setattr(table, "_TABLE", list(table._TABLE))
    yield
    table._import_installed.cache_clear()


@pytest.fixture
def noise(monkeypatch):
    """The example, imported as a user does; it registers itself."""
    monkeypatch.syspath_prepend(str(EXAMPLE.parent))
    monkeypatch.delitem(sys.modules, "gradient_noise", raising=False)
    return importlib.import_module("gradient_noise").GradientNoise


def start(*boosts, **fields):
    boosts = (LossScale(NO_SCALE), *boosts)
    config = ProgramConfig(boosts=boosts, optimizer=Sgd(), **fields)
    return stepper(build_program(small_mlp(), config))


def test_the_example_is_as_short_as_it_says(noise):
    code = EXAMPLE.read_text().split('"""\n', 1)[1]
    assert len([line for line in code.splitlines() if line.strip()]) <= 48
    names = [boost.name for boost in registered()]
    assert names[names.index("gradient-noise") - 1 :][:3] == [
        "clip",
        "gradient-noise",
        "grad-freeze",
    ]


@pytest.mark.parametrize("engine", ENGINES)
def test_the_noise_has_the_documented_variance(noise, engine):
    quiet, noisy = start(engine=engine), start(noise(eta=0.09, gamma=1.0), engine=engine)
    batch = batch_for(quiet.program, 6)
    for number in (1, 2, 3, 4):
        before = {p.name: noisy.get(p.name) for p in noisy.catalogue.entries("parameter")}
        quiet.load_state({**quiet.state(), **before})
        quiet.step(batch, RATE)
        noisy.step(batch, RATE, seed=number)
        added = np.concatenate([(noisy.get(n) - quiet.get(n)).ravel() for n in before])
        np.testing.assert_allclose(np.abs(added), np.sqrt(0.09 / number), rtol=1e-5)
        assert 0.2 < (added > 0).mean() < 0.8
    assert noisy.catalogue.randomness


def test_the_same_seed_is_the_same_noise(noise):
    one, other, third = (start(noise()) for _ in range(3))
    batch = batch_for(one.program, 6)
    for training, seed in ((one, 5), (other, 5), (third, 6)):
        training.step(batch, RATE, seed=seed)
    assert_same_bits(one.state(), other.state())
    assert one.get("w1").tobytes() != third.get("w1").tobytes()


def test_it_survives_json_and_a_folder(noise, tmp_path):
    config = ProgramConfig(boosts=(noise(eta=0.5), LessBN()), accumulate=2)
    assert [boost.name for boost in config.boosts] == [
        "less-bn", "loss-scale", "grad-accumulation", "gradient-noise",
    ]  # fmt: skip
    data = json.loads(json.dumps(config.to_dict()))
    assert data["boosts"] == [{"name": "gradient-noise", "eta": 0.5, "gamma": 0.55}]
    assert ProgramConfig.from_dict(data) == config
    program = build_program(small_mlp(), ProgramConfig(boosts=(noise(eta=0.5),)))
    program.save(tmp_path / "run")
    loaded = Program.load(tmp_path / "run")
    assert loaded.config.boosts == program.config.boosts
    assert loaded.fingerprint == program.fingerprint


def test_a_program_is_refused_where_its_boost_is_not_registered(noise, tmp_path, capsys):
    folder = build_program(small_mlp(), ProgramConfig(boosts=(noise(),))).save(tmp_path / "run")
    table._TABLE.remove(noise)
    with pytest.raises(FileError, match="Unknown boost 'gradient-noise'") as caught:
        Program.load(folder)
    assert_three_lines(caught.value)
    assert "written by ortboost" in caught.value.where
    assert "regist" in caught.value.fix
    assert main(["inspect", str(folder)]) != 0
    assert "gradient-noise" in capsys.readouterr().err


def convert(run, *words):
    return main(["convert", MLP, "-o", str(run), *words])


def test_the_command_line_refuses_it_or_finds_it_by_its_entry_point(
    noise, tmp_path, capsys, monkeypatch
):
    table._TABLE.remove(noise)
    words = ["--boost", "gradient-noise:eta=0.25"]
    assert convert(tmp_path / "run", *words) != 0
    message = capsys.readouterr().err
    assert "Unknown boost 'gradient-noise'" in message
    assert "registered" in message
    assert "Traceback" not in message
    entry = SimpleNamespace(
        name="gradient-noise", value="gradient_noise:GradientNoise", load=lambda: noise
    )
    monkeypatch.setattr(
        table, "entry_points", lambda group: [entry] if group == table.ENTRY_POINTS else []
    )
    table._import_installed.cache_clear()
    assert convert(tmp_path / "run", *words, "-q") == 0
    assert Program.load(tmp_path / "run").config.boosts[-1] == noise(eta=0.25)
    assert main(["list"]) == 0
    assert "Add noise to the gradients, less and less" in capsys.readouterr().out
    assert main(["list", "gradient-noise"]) == 0
    assert "How fast it falls" in capsys.readouterr().out


def test_a_package_that_cannot_be_imported_is_named(monkeypatch):
    def load():
        raise ImportError("no module named x")

    entry = SimpleNamespace(name="x", value="x:X", load=load)
    monkeypatch.setattr(table, "entry_points", lambda group: [entry])
    table._import_installed.cache_clear()
    with pytest.raises(ConfigError, match="cannot be imported") as caught:
        registered()
    assert_three_lines(caught.value)
    assert "x:X" in caught.value.where


# ---- the page ------------------------------------------------------------------------------------


def test_the_sample_of_the_page_runs(noise, tmp_path):
    page = (ROOT / "docs" / "own_boost.md").read_text()
    code = re.findall(r"```python\n(.*?)```", page, re.DOTALL)[0]
    names: dict = {}
    exec(code.replace("model.onnx", MLP).replace('"run"', repr(str(tmp_path / "run"))), names)
    assert [boost.name for boost in names["config"].boosts] == [
        "loss-scale",
        "clip",
        "gradient-noise",
    ]
    assert (tmp_path / "run" / "program.json").is_file()


def test_the_optimizer_of_the_page_trains(tmp_path):
    """A folder with a rule of a user was written, but could not be read."""
    page = (ROOT / "docs" / "own_boost.md").read_text()
    code = re.findall(r"```python\n(.*?)```", page, re.DOTALL)[1]
    run, names = tmp_path / "run", {"__name__": __name__}
    code = code.replace("model.onnx", MLP).replace('"run2"', repr(str(run)))
    with pytest.raises(ConfigError, match="Lion is not registered") as caught:
        exec(code.replace("@register\n", ""), dict(names))
    assert_three_lines(caught.value)
    try:
        exec(code, names)
        summary = api.train(run, DIGITS, epochs=1, max_steps=2, progress=None)
        api.train(run, DIGITS, epochs=1, max_steps=4, resume=True, progress=None)
        program, state, _ = api.load_run(run, "last")
    finally:
        OPTIMIZERS.pop("lion", None)
    assert summary.steps == 2
    assert type(program.config.optimizer).__name__ == "Lion"
    signs = (state["fc2.bias"] - program.initial["fc2.bias"]) / 1e-3  # sums of four
    np.testing.assert_allclose(signs, np.round(signs / 2) * 2, atol=1e-2)
    assert signs.any()


@pytest.mark.parametrize(
    ("rule", "what"),
    [
        (type("Named", (), {"name": "adam"}), "or it is taken"),
        (type("Nameless", (), {}), "not a valid name"),
        (type("Plain", (), {"name": "plain"}), "is no dataclass"),
    ],
)
def test_optimizers_that_cannot_be_registered(rule, what):
    with pytest.raises(ConfigError, match=what) as caught:
        register_optimizer(rule)
    assert_three_lines(caught.value)


# ---- state, order, refusals ----------------------------------------------------------------------


@dataclass(frozen=True)
class Counted(Boost):
    """Count the updates, and stop after a given number."""

    limit: int

    name = "counted"
    stage = "gradients"

    def states(self, trained):
        return (State("ortboost/counted/seen", np.zeros((), np.int64)),)

    def transform_gradients(self, update, gradients):
        b = update.b
        seen = update.states["ortboost/counted/seen"]
        update.next_of["ortboost/counted/seen"] = b.op("Add", seen, b.const(1, ir.DataType.INT64))
        more = b.op("Less", seen, b.const(self.limit, ir.DataType.INT64), dtype=ir.DataType.BOOL)
        factor = b.op("Cast", more, dtype=ir.DataType.FLOAT, to=ir.DataType.FLOAT)
        return {name: b.op("Mul", grad, factor) for name, grad in gradients.items()}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    "others", [(), (GradAccumulation(2), GradFreeze(groups=2, sequence=(0, 1)))]
)
def test_a_state_of_its_own_moves_with_the_update_and_with_nothing_else(others, engine, tmp_path):
    register(Counted)
    training = start(Counted(3), *others, engine=engine)
    entry = next(e for e in training.catalogue.state if e.name == "ortboost/counted/seen")
    assert (entry.kind, entry.next) == ("counter", "ortboost/next/ortboost/counted/seen")
    window = 2 if others else 1
    batch = batch_for(training.program, 6)
    for number in range(1, 6):
        before = training.get("w2")
        training.step({**batch, "x": np.full_like(batch["x"], np.nan)}, RATE)
        assert training.get("w2").tobytes() == before.tobytes()
        for _ in range(window):
            training.step(batch, {"learning_rate": 0.01})
        assert int(training.get("ortboost/counted/seen")) == number
        assert (training.get("w2").tobytes() != before.tobytes()) == (number <= 3)
    if others:
        training.step(batch, RATE)
        assert training.flush(RATE)
        assert int(training.get("ortboost/counted/seen")) == 6


@dataclass(frozen=True)
class Divided(Boost):
    """Sums a vector of which each process computes some elements."""

    name = "divided"
    stage = "update"

    def states(self, trained):
        zeros = np.zeros(3, np.float32)
        counters = (State(f"ortboost/divided/{name}", zeros) for name in ("early", "late"))
        return (*counters, State(PART, np.array([0, 1]), changes_at="never"))

    def partial_sums(self, update, applies):
        b = update.b
        rank, size = (
            b.op("Gather", update.states[PART], b.const(i, ir.DataType.INT64)) for i in (0, 1)
        )
        turn = b.op("Equal", b.op("Mod", b.ints(0, 1, 2), size), rank, dtype=ir.DataType.BOOL)
        own = b.op("Cast", turn, dtype=ir.DataType.FLOAT, to=ir.DataType.FLOAT)
        early = "ortboost/divided/early"
        update.next_of[early] = b.op("Add", update.states[early], own)
        return {"divided": b.op("Mul", own, b.const([1.0, 2.0, 4.0]), shape=(3,))}

    def transform_gradients(self, update, gradients):
        late = "ortboost/divided/late"
        update.next_of[late] = update.b.op("Add", update.states[late], update.sums["divided"])
        return gradients


@pytest.mark.parametrize("others", [(), (GradAccumulation(2), Thor(distribute_inverses=True))])
@pytest.mark.parametrize("check", [True, False])
def test_what_processes_compute_in_parts_is_whole_in_one(others, check):
    register(Divided)
    boosts = (Divided(), LossScale(NO_SCALE), *others)
    program = build_program(small_mlp(), ProgramConfig(boosts=boosts, check_finite=check))
    (part,) = (entry for entry in program.catalogue.state if entry.name == PART)
    assert part.next is None
    points = cut_exchanges(split_program(program)["step"].update)[1]
    assert any(spec.name.endswith("value/divided") for spec in points) == (not others)
    training, batch = stepper(program), batch_for(program, 6)
    for number in range(1, 4):
        if check:
            training.step({**batch, "x": np.full_like(batch["x"], np.nan)}, RATE)
        for _ in range(2 if others else 1):
            training.step(batch, {"learning_rate": 0.01})
        for name, each in (("early", [1, 1, 1]), ("late", [1, 2, 4])):
            found = training.get(f"ortboost/divided/{name}")
            np.testing.assert_array_equal(found, number * np.array(each))
    if others:
        training.step(batch, RATE)
        assert training.flush(RATE)
        np.testing.assert_array_equal(training.get("ortboost/divided/late"), [4, 8, 16])


def test_the_order_is_that_of_the_table():
    boosts = (GradFreeze(), Clip("norm", 1.0), LessBN())
    names = [boost.name for boost in ProgramConfig(boosts=boosts).boosts]
    assert names == ["less-bn", "loss-scale", "clip", "grad-freeze"]
    register(Counted, after="less-bn")
    assert [boost.name for boost in registered()][:3] == ["less-bn", "counted", "full-norm-head"]


@dataclass(frozen=True)
class Impostor(Boost):
    """Takes a name."""

    name = "clip"
    stage = "gradients"


@dataclass(frozen=True)
class Nameless(Boost):
    """Has none that can be written."""

    name = "my boost:x"
    stage = "gradients"


@dataclass(frozen=True)
class Underlined(Boost):
    """Its name would not be found: names are looked up with hyphens."""

    name = "my_boost"
    stage = "gradients"


@dataclass(frozen=True)
class Search(DimReduce):
    """Another line search."""

    name = "search"


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: register(Impostor), "'clip' already"),
        (lambda: register(Nameless), "not a valid name of a boost"),
        (lambda: register(Underlined), "not a valid name of a boost"),
        (lambda: register(type("Nowhere", (Boost,), {"name": "nowhere"})), "where it acts"),
        (lambda: register(Counted, after="clop"), "Unknown boost 'clop'"),
        (lambda: ProgramConfig(boosts=(Counted(1),)), "Unknown boost 'counted'"),
        (lambda: ProgramConfig(boosts=(Impostor(),)), "is not the boost registered"),
        (lambda: ProgramConfig(boosts=(LessBN,)), "is not a boost"),
        (lambda: ProgramConfig(boosts=LessBN()), "boosts"),
        (lambda: ProgramConfig(boosts="less-bn"), "boosts"),
        (lambda: ProgramConfig(boosts=(LessBN(), LessBN())), "'less-bn' is given twice"),
        (lambda: ProgramConfig(boosts=(LossScale(), GroupLossScale())), "one per group"),
        (lambda: ProgramConfig(boosts=(register(Search)("p"), DimReduce("p"))), "both replace"),
        (lambda: ProgramConfig.from_dict({"boosts": ["less-bn"]}), "is not a boost"),
        (lambda: ProgramConfig.from_dict({"boosts": 3}), "boosts"),
        (lambda: ProgramConfig.from_dict({"boosts": [{"name": "less-bm"}]}), "Unknown boost "
"'less-bm'"),
        (lambda: ProgramConfig.from_dict({"boosts": [{"name": "clip"}]}), "missing"),
        (lambda: ProgramConfig.from_dict({"boosts": [{"name": "clip", "lim": 1}]}), "'lim'"),
        (lambda: GradFreeze(by="size"), "'size'"),
        (lambda: GradFreeze(p="much"), "'p'"),
        (lambda: GradFreeze(p=1.5), "1.5"),
        (lambda: GradFreeze(groups=0), "0"),
        (lambda: GradAccumulation(0), "'steps' is 0"),
    ],
)  # fmt: skip
def test_what_makes_no_sense_is_refused(make, said):
    with pytest.raises(ConfigError) as caught:
        make()
    assert_three_lines(caught.value)
    assert said in str(caught.value)


@dataclass(frozen=True)
class EachStep(Boost):
    """Counts the steps of windows."""

    name = "each-step"
    stage = "gradients"

    def states(self, trained):
        return [State("ortboost/each_step", np.zeros((), np.int64), changes_at="step")]

    def observe(self, step):
        one = step.b.const(1, ir.DataType.INT64)
        return {"ortboost/each_step": step.b.op("Add", step.states["ortboost/each_step"], one)}


def test_a_state_of_each_step_needs_a_window():
    register(EachStep)
    training = start(EachStep(), GradAccumulation(2))
    for _ in range(3):
        training.step(batch_for(training.program, 2), RATE)
    assert training.get("ortboost/each_step") == 3
    with pytest.raises(ConfigError, match="no accumulation") as caught:
        start(EachStep())
    assert_three_lines(caught.value)
