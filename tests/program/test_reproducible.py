"""A conversion gives the same graphs in every process, whatever the order of Python's sets."""

from __future__ import annotations

import os
import subprocess
import sys

import onnx
import onnx_ir as ir

from tests.support import ROOT, model_path, text_model, weights

LOOP = """<ir_version: 10, opset_import: ["" : 18]>
net (float[N,4] x, float[4,4] u, float[4,4] v, float[4] b) => (float[N,4] y) {
  three = Constant <value = int64 {3}> ()
  yes = Constant <value = bool {1}> ()
  y, hidden, cell = Loop (three, yes, x, x, x) <body = turn
    (int64 i, bool go, float[N,4] h, float[N,4] c, float[N,4] d)
    => (bool going, float[N,4] k, float[N,4] l, float[N,4] m) {
      going = Identity(go)
      p = MatMul(h, u)  q = Mul(c, b)  r = MatMul(d, v)
      s = Mul(p, h)  t = Mul(q, c)  o = Mul(r, d)
      k = Add(s, t)  l = Add(t, o)  m = Mul(k, b) }> }"""
SCRIPT = """
import hashlib, sys
import onnx_ir as ir
import ortboost as ob
for line in sys.stdin:
    path, boost = line.split()
    program = ob.convert(path, path + ".program", boost=boost, dry_run=True)
    digest = hashlib.sha256()
    for model in (*program.graphs.values(), program.evaluation):
        digest.update(ir.to_proto(model).SerializeToString())
    print(path, boost, digest.hexdigest(), *program.reports)
"""


def converted(lines: str, seed: int) -> str:
    environment = {**os.environ, "PYTHONHASHSEED": str(seed), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", SCRIPT]
    done = subprocess.run(
        command, input=lines, env=environment, capture_output=True, text=True, check=True
    )
    return done.stdout


def test_a_conversion_does_not_depend_on_the_seed_of_hashes(tmp_path):
    loop = tmp_path / "loop.onnx"
    tensors = {"u": weights(4, 4), "v": weights(4, 4, seed=1), "b": weights(4)}
    onnx.save(ir.to_proto(text_model(LOOP, **tensors)), loop)
    jobs = [(loop, "O0"), (model_path("lenet5"), "O1"), (model_path("transformer_tiny"), "O2")]
    lines = "".join(f"{path} {boost}\n" for path, boost in jobs)
    first = converted(lines, seed=1)
    assert first.count("\n") >= len(jobs)
    assert all(converted(lines, seed) == first for seed in (2, 3))
