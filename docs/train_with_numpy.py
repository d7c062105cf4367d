"""Train a program of the portable engine with numpy and onnxruntime alone.

Usage: python train_with_numpy.py RUN_FOLDER DATA.npz    (arrays x_train and y_train)
"""

import json
import pathlib
import sys

import numpy as np
import onnxruntime as ort

run, data = sys.argv[1], np.load(sys.argv[2])
session = ort.InferenceSession(f"{run}/step.onnx", providers=["CPUExecutionProvider"])
catalogue = json.loads(session.get_modelmeta().custom_metadata_map["ortboost.catalogue"])

raw = pathlib.Path(run, "state.safetensors").read_bytes()  # 8 bytes of length, JSON, the tensors
start = 8 + int.from_bytes(raw[:8], "little")
state = {}
for name, about in json.loads(raw[8:start]).items():
    begin, end = about["data_offsets"]
    dtype = {"F32": np.float32, "I64": np.int64}[about["dtype"]]
    state[name] = np.frombuffer(raw[start + begin : start + end], dtype).reshape(about["shape"])

names = [output.name for output in session.get_outputs()]
rate = np.array(0.05, np.float32)
rng, x, y = np.random.default_rng(0), data["x_train"], data["y_train"]
for step in range(300):
    rows = rng.integers(0, len(x), 32)
    batch = {"x": x[rows], "labels": y[rows], "learning_rate": rate}
    answer = dict(zip(names, session.run(names, {**batch, **state}), strict=True))
    state.update({e["name"]: answer[e["next"]] for e in catalogue["state"] if e["next"]})
    if step % 100 == 99:
        print(f"step {step + 1}: loss {answer['loss']:.4f}, scale {answer['loss_scale']:g}")
