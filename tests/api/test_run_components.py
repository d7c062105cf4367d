"""Principal components of checkpoints: against the SVD in float64, in blocks, and errors."""

from __future__ import annotations

import json

import numpy as np
import pytest

import ortboost as ob
from ortboost.cli.app import run as command
from ortboost.training import CheckpointStore
from ortboost.training import components as components_module
from tests.support import assert_three_lines, small_mlp

ROWS = 12


@pytest.fixture
def trained(tmp_path):
    program = ob.build_program(small_mlp(), ob.ProgramConfig(engine="portable", freeze=("b1",)))
    folder = program.save(tmp_path / "run")
    store, rng = CheckpointStore(folder / "checkpoints", keep=99), np.random.default_rng(0)
    names = ["w1", "w2", "b2"]  # the frozen one is not included
    mixing, rows = rng.standard_normal((5, 24 + 18 + 3)), []
    for step in range(ROWS):
        flat = 3 + rng.standard_normal(5) @ mixing + 0.01 * rng.standard_normal(mixing.shape[1])
        rows.append(flat.astype(np.float32))
        parts = np.split(rows[-1], [24, 42])
        state = dict(program.initial)
        for name, part in zip(names, parts, strict=True):
            state[name] = part.reshape(state[name].shape)
        store.save(state, {"step": step}, program=program.fingerprint)
    return folder, np.stack(rows).astype(np.float64)


def expected(rows, k):
    """By the SVD of the centred rows; signs as scikit-learn's ``svd_flip``."""
    _, sizes, components = np.linalg.svd(rows - rows.mean(axis=0), full_matrices=False)
    largest = components[np.arange(len(components)), np.abs(components).argmax(axis=1)]
    variance = sizes**2 / (sizes**2).sum()
    return (components * np.sign(largest)[:, None])[:k], variance[:k].sum()


@pytest.mark.parametrize("block", [1, 1000, 2**26])
def test_as_the_svd(trained, tmp_path, block, monkeypatch):
    folder, rows = trained
    monkeypatch.setattr(components_module, "_BLOCK", block)
    told = ob.pca(folder, tmp_path / "p.npy", components=7)
    components, share = expected(rows, 7)
    found = np.load(tmp_path / "p.npy")
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, components, rtol=0, atol=1e-5)
    np.testing.assert_allclose(found @ found.T, np.eye(7), rtol=0, atol=1e-5)
    assert told == {
        "components": 7,
        "weights": 45,
        "checkpoints": ROWS,
        "explained": pytest.approx(share),
    }


def test_as_scikit_learn(trained, tmp_path):
    decomposition = pytest.importorskip("sklearn.decomposition")
    folder, rows = trained
    ob.pca(folder, tmp_path / "p.npy", components=5)
    theirs = decomposition.PCA(5, svd_solver="full").fit(rows)
    found = np.load(tmp_path / "p.npy")
    np.testing.assert_allclose(np.abs(np.sum(found * theirs.components_, axis=1)), 1, atol=1e-5)


def test_the_command_and_what_comes_after(trained, tmp_path, capsys):
    folder, _ = trained
    path = tmp_path / "p.npy"
    assert command(["pca", str(folder), "-k", "4", "-o", str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["components"] == 4
    boost = ob.DimReduce(str(path))
    config = ob.ProgramConfig(engine="portable", freeze=("b1",), boosts=(boost,))
    ob.build_program(small_mlp(), config)  # the order and number of the weights fit


def test_a_step_that_was_saved_twice(trained, tmp_path):
    """As with an incomplete window, which is applied after the step: the second file counts."""
    folder, rows = trained
    store = CheckpointStore(folder / "checkpoints", keep=99)
    program = ob.Program.load(folder)
    state = {**store.load(store.path(ROWS - 1)).state, "w1": program.initial["w1"]}
    store.save(state, {"step": ROWS - 1}, program=program.fingerprint)
    ob.pca(folder, tmp_path / "p.npy", components=3)
    rows[-1, :24] = program.initial["w1"].reshape(-1)
    np.testing.assert_allclose(np.load(tmp_path / "p.npy"), expected(rows, 3)[0], rtol=0, atol=1e-5)


@pytest.mark.parametrize("what", ["few", "none", "damaged", "unnamed", "foreign"])
def test_refusals(trained, tmp_path, what):
    folder, _ = trained
    checkpoints, k = None, 3
    if what == "few":
        k = ROWS  # centred rows have one direction less
    elif what == "none":
        checkpoints = tmp_path
    elif what == "damaged":
        next(folder.glob("checkpoints/*.safetensors")).write_bytes(b"short")
    elif what == "unnamed":
        next(folder.glob("checkpoints/step-*.json")).write_text("{}")
    else:
        other = ob.build_program(small_mlp(hidden=5), ob.ProgramConfig(engine="portable"))
        folder = other.save(tmp_path / "other")
        checkpoints = tmp_path / "run" / "checkpoints"
    with pytest.raises(ob.OrtBoostError) as caught:
        ob.pca(folder, tmp_path / "p.npy", components=k, checkpoints=checkpoints)
    assert_three_lines(caught.value)
    assert not (tmp_path / "p.npy").exists()
