"""Every public function explains a wrong argument in three lines; no bare errors are raised."""

from __future__ import annotations

import inspect
from functools import partial
from typing import Any

import numpy as np
import pytest

import ortboost as ob
from ortboost.core.errors import ArgumentTypeError, ConfigError, OrtBoostError
from ortboost.deploy.bench_results import BenchConfig
from ortboost.deploy.int8.config import Int8Config
from ortboost.graph.shapes.input_config import InputConfig
from tests.support import assert_three_lines, small_mlp

_CPU = {"device": "cpu"}
_QUICK = BenchConfig(seconds=0.01, rounds=1, loads=1, warmup=0)


class Alien:
    """Of no use to anything."""


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A program folder, a model file and data, to call everything with rightly."""
    folder = tmp_path_factory.mktemp("wrong")
    ob.convert(small_mlp(), folder / "run", ob.ProgramConfig(engine="portable"))
    ob.build_program(small_mlp(), ob.ProgramConfig(engine="portable")).save(folder / "other")
    random = np.random.default_rng(0)
    np.savez(
        folder / "data.npz",
        x=random.standard_normal((8, 4)).astype(np.float32),
        labels=random.integers(0, 3, 8),
    )
    ob.load(small_mlp(), **_CPU).save(folder / "net.onnx")
    ob.save_checkpoint(ob.load(small_mlp(), **_CPU), folder / "net.safetensors")
    ob.train(folder / "run", folder / "data.npz", batch_size=4, checkpoint_every=1, **_CPU)
    (folder / "empty").mkdir()
    return folder


def calls(place) -> dict[str, tuple[Any, dict[str, Any]]]:
    """Each public function with arguments that are right."""
    run, model, data = place / "run", place / "net.onnx", place / "data.npz"
    network = ob.load(model, **_CPU)
    return {
        "bench": (ob.bench, {"files": [model], "config": _QUICK}),
        "build_program": (ob.build_program, {"source": model}),
        "check": (ob.check, {"model": model}),
        "compare": (ob.compare, {"one": run, "other": model, "checkpoint": "initial", **_CPU}),
        "convert": (ob.convert, {"model": model, "out": place / "new", "dry_run": True}),
        "doctor": (ob.doctor, {}),
        "evaluate": (ob.evaluate, {"target": run, "data": data, **_CPU}),
        "export": (ob.export, {"run": run, "out": place / "out.onnx", **_CPU}),
        "inspect": (ob.inspect, {"path": model}),
        "inspect_pair": (ob.inspect_pair, {"before": model, "after": model}),
        "plot": (ob.plot, {"source": model}),
        "register_gradient": (partial(ob.register_gradient, "Round"), {}),
        "runs": (ob.runs, {"sources": [place / "run"]}),
        "load": (ob.load, {"source": model, **_CPU}),
        "load_checkpoint": (ob.load_checkpoint, {"ckpt_file_name": place / "net.safetensors"}),
        "load_param_into_net": (
            ob.load_param_into_net,
            {"net": network, "parameter_dict": network.parameters_dict()},
        ),
        "load_run": (ob.load_run, {"run": run}),
        "save_checkpoint": (
            ob.save_checkpoint,
            {"save_obj": network, "ckpt_file_name": place / "saved.safetensors"},
        ),
        "pca": (ob.pca, {"run": run, "output": place / "p.npy", "components": 1}),
        "set_auto_parallel_context": (
            ob.set_auto_parallel_context,
            {"parallel_mode": "stand_alone"},
        ),
        "train": (ob.train, {"run": place / "other", "data": data, "overwrite": True, **_CPU}),
        "Program.load": (ob.Program.load, {"folder": run}),
        "Program.save": (ob.Program.load(run).save, {"folder": place / "copy"}),
        "Stepper": (ob.Stepper, {"program": ob.Program.load(run), **_CPU}),
        "Network": (ob.Network, {"source": model, **_CPU}),
        "Model": (ob.Model, {"network": network}),
        "TrainConfig": (ob.TrainConfig, {}),
        "ProgramConfig": (ob.ProgramConfig, {}),
        "InputConfig": (InputConfig, {}),
        "Int8Config": (Int8Config, {}),
    }


NAMES = [
    "InputConfig",
    "Int8Config",
    "Model",
    "Network",
    "Program.load",
    "Program.save",
    "ProgramConfig",
    "Stepper",
    "TrainConfig",
    "bench",
    "build_program",
    "check",
    "compare",
    "convert",
    "doctor",
    "evaluate",
    "export",
    "inspect",
    "inspect_pair",
    "load",
    "load_checkpoint",
    "load_param_into_net",
    "load_run",
    "pca",
    "plot",
    "register_gradient",
    "runs",
    "save_checkpoint",
    "set_auto_parallel_context",
    "train",
]


def test_the_list_is_complete(place):
    functions = {name for name in ob.__all__ if inspect.isfunction(getattr(ob, name))}
    assert functions <= set(NAMES)
    assert set(calls(place)) == set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_right_arguments_are_taken(place, name, tmp_path, monkeypatch):
    """Else the errors below could be about something else."""
    monkeypatch.chdir(tmp_path)  # some wrong values are places that can be written
    function, right = calls(place)[name]
    function(**right)


def _wrong(place) -> list[Any]:
    return [
        None,
        {"no": "such"},
        {},
        7,
        -1,
        1.5,
        True,
        "no/such/place",
        "",
        b"bytes",
        place / "missing.onnx",
        place / "empty",
        place / "data.npz",
        [],
        [None],
        object(),
        Alien,
        np.zeros(3),
        lambda: None,
    ]


@pytest.mark.parametrize("name", NAMES)
def test_wrong_arguments_get_three_lines(place, name, tmp_path, monkeypatch):
    """A wrong value may be taken where it makes sense; what may not be is any other exception."""
    monkeypatch.chdir(tmp_path)  # some wrong values are places that can be written
    function, right = calls(place)[name]
    refused: dict[str, int] = {}
    escaped: list[str] = []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL):
            continue
        for value in _wrong(place):
            if parameter.name in ("tell", "choice_func") and callable(value):
                continue  # a failing function raises its own error
            if value is parameter.default:
                continue  # right, and for `bench` slow
            try:
                function(**{**right, parameter.name: value})
            except OrtBoostError as error:
                assert_three_lines(error)
                refused[parameter.name] = refused.get(parameter.name, 0) + 1
            except UserWarning:
                pass  # taken, with a remark: an empty parameter_dict
            except Exception as error:  # collect all errors
                escaped.append(f"{name}({parameter.name}={value!r}): {error!r}")
    assert not escaped, "\n".join(escaped)
    lenient = {"data", "validation", "verify", "calibration", "values"}
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind not in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL):
            assert refused.get(parameter.name, 0) > 5 or parameter.name in lenient, parameter.name


def test_a_dictionary_is_no_configuration(place):
    with pytest.raises(
        ArgumentTypeError, match=r"'config' is \{'learning_rate': '0.1'\}"
    ) as caught:
        ob.convert(place / "net.onnx", place / "new", {"learning_rate": "0.1"})
    assert isinstance(caught.value, TypeError)
    assert caught.value.where == "convert, config"
    assert caught.value.fix == "Give a ProgramConfig or None."


def test_a_setting_of_the_trainer_that_does_not_exist(place):
    with pytest.raises(ConfigError, match="Unknown argument 'epoch'") as caught:
        ob.train(place / "other", place / "data.npz", epoch=3, **_CPU)
    assert "epochs" in caught.value.fix


@pytest.mark.parametrize("setting", [{"loss_scale": ob.NO_SCALE}, {"labels": "y"}, {"output": "z"}])
def test_a_setting_of_the_program_is_none_of_the_training(place, setting):
    with pytest.raises(ConfigError, match=f"Unknown argument '{next(iter(setting))}'"):
        ob.train(place / "other", place / "data.npz", **setting, **_CPU)
