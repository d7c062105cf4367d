"""TensorRT: check what its ONNX parser accepts, fix what can be fixed, build engines.

Checking needs no TensorRT: the rules in :mod:`ortboost.deploy.tensorrt.rules` read a table that was
made from the parser's own documentation. Building needs it, and a GPU.
"""
