"""TensorRT: what its ONNX parser accepts, fixing what can be fixed, and building engines.

Checking needs no TensorRT: the rules in :mod:`ortboost.deploy.tensorrt.rules` read a table that was
    made
from the parser's own documentation. Building does, and a GPU.
"""
