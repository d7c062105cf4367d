"""TensorRT: what its ONNX parser accepts, mending what can be mended, and building engines.

Checking needs no TensorRT: the rules in :mod:`ortboost.deploy.tensorrt.rules` read a table that was made
from the parser's own documentation. Building does, and a GPU.
"""
