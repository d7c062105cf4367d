"""CUDA: where ONNX Runtime puts each node of a graph there, and forms that keep it on the device.

What is said of the runtime comes from tables of its kernels (``kernels-*.json``, made by ``tools/make_cuda_table.py``), so
that it can be said without a GPU; ``tools/gpu/placement.py`` compares it with what the runtime does.
"""
