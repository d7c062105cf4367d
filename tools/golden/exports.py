"""Make ``tests/golden/exports``: the same small network as different exporters write it.

* ``convbn_torchscript.onnx``: batch normalization and dropout in training form.
* ``convbn_dynamo.onnx``: ``optimize=False``; batch normalization in inference form although the
  module was in ``train()``, dropout in training form with one output, ``CastLike`` for the bias
  that a convolution does not have.
* ``convbn_dynamo_folded.onnx``: the default ``optimize=True``; batch normalization is gone, folded
  into the convolutions. The file has no record of it.
* ``convbn_opset9.onnx``: an old file: opset 9, IR 3, weights are also graph inputs, batch
  normalization has five outputs, dropout has its ratio as an attribute.
* ``mlp_dynamo.onnx``: the counterpart of ``models/mlp.onnx``.

The shipped files were made with PyTorch 2.13.0, onnx 1.23.2 and onnxscript 0.7.2.

Examples:
    From the root of the repository::

        python -m tools.golden.exports
"""

from __future__ import annotations

import argparse
import logging
import warnings
from dataclasses import replace
from pathlib import Path

import onnx

from tools.export_torch import (
    NETWORKS,
    ConvBnDropout,
    NetworkSpec,
    export,
    export_dynamo,
    strip_machine_information,
    write,
)

__all__ = ["CONVBN", "main"]

CONVBN = NetworkSpec(ConvBnDropout, (1, 8, 8), 7, "torchscript", optimize=False)


def _folded() -> onnx.ModelProto:
    """Export with the defaults of dynamo; ``export`` would refuse the lost parameters."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        logging.getLogger("torch.onnx").setLevel(logging.ERROR)
        model = export_dynamo(replace(CONVBN, optimize=True))
    strip_machine_information(model)
    onnx.checker.check_model(model, full_check=True)
    return model


def _opset9() -> onnx.ModelProto:
    """Export at opset 9, then lower the IR version from 4 to 3, which the content allows."""
    model = export(replace(CONVBN, opset=9))
    model.ir_version = 3
    onnx.checker.check_model(model, full_check=True)
    return model


def main(argv: list[str] | None = None) -> int:
    """Write the files."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.golden.exports",
        description="Make tests/golden/exports.",
        epilog="example: python -m tools.golden.exports",
    )
    parser.add_argument("--out", type=Path, default=Path("tests/golden/exports"))
    out = parser.parse_args(argv).out

    write(export(CONVBN, "torchscript"), out / "convbn_torchscript.onnx")
    write(export(CONVBN, "dynamo"), out / "convbn_dynamo.onnx")
    write(_folded(), out / "convbn_dynamo_folded.onnx")
    write(_opset9(), out / "convbn_opset9.onnx")
    write(export(NETWORKS["mlp"], "dynamo"), out / "mlp_dynamo.onnx")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
