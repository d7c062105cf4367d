#!/bin/sh
# Make the environment in which the zoo is gathered. It is not that of the project: torch, transformers and
# the optimizers that we compare with bring their own onnx and onnxruntime.
#
# Usage: sh tools/zoo/setup.sh FOLDER
set -eu
venv=${1:?usage: sh tools/zoo/setup.sh FOLDER}
${PYTHON:-python3.11} -m venv "$venv"
"$venv/bin/python" -m pip install -q --disable-pip-version-check torch==2.13.0 \
    onnx onnxscript onnxruntime onnxslim onnxsim transformers safetensors scikit-learn skl2onnx pillow
# timm requires torchvision, which its networks do not use.
"$venv/bin/python" -m pip install -q --disable-pip-version-check --no-deps timm
