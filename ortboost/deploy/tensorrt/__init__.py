"""TensorRT: check what its ONNX parser accepts, fix what can be fixed, build engines.

Checking needs no TensorRT: the rules in :mod:`ortboost.deploy.tensorrt.rules` use a table generated
from the parser's own documentation. Building needs TensorRT and a GPU.
"""
