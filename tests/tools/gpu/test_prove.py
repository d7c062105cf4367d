import json

import pytest

from tools.gpu import prove


def proof(tmp_path, *sections):
    out = tmp_path / "proof.json"
    words = [word for section in sections for word in ("--only", section)]
    status = prove.main(["--device", "cpu", "-o", str(out), *words])
    return status, json.loads(out.read_text())


def test_a_rehearsal(tmp_path):
    status, found = proof(tmp_path, "tensorrt", "placement")
    assert status == 0
    assert found["tensorrt"]["ok"]
    assert found["tensorrt"]["provider"] == {"device": "cpu", "distance": 0.0}
    assert found["placement"] == {
        "ok": None,
        "skipped": "there is nothing to place on a CPU",
        "took": found["placement"]["took"],
    }


@pytest.mark.parametrize("how", ["raises", "differs"])
def test_what_is_not_shown_fails_and_the_rest_goes_on(tmp_path, monkeypatch, how, capsys):
    def broken(self):
        if how == "raises":
            raise RuntimeError("no memory")
        return {"ok": False}

    monkeypatch.setattr(prove.Proof, "parity", broken)
    status, found = proof(tmp_path, "parity", "placement")
    assert status == 1
    assert found["parity"]["ok"] is False
    assert found["parity"].get("error") == ("RuntimeError: no memory" if how == "raises" else None)
    assert "skipped" in found["placement"]
    assert '"failed": ["parity"]' in capsys.readouterr().out


def test_a_difference_is_seen(tmp_path, monkeypatch):
    monkeypatch.setattr(prove, "MODELS", ("mlp",))
    assert proof(tmp_path, "parity")[1]["parity"]["ok"]
    answer = prove._run

    def off(program, feeds, device):
        losses, state = answer(program, feeds, device)
        off.calls += 1
        return ([loss * 1.5 for loss in losses] if off.calls == 2 else losses), state

    off.calls = 0
    monkeypatch.setattr(prove, "_run", off)
    status, found = proof(tmp_path, "parity")
    assert status == 1
    assert found["parity"]["mlp.fp32"]["loss"] == pytest.approx(0.5)
    assert found["parity"]["mlp.fp16"]["ok"]
