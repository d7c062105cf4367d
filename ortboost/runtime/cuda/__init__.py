"""CUDA without CUDA: where ONNX Runtime would run each node of a graph, by tables of its kernels.

The tables (``kernels-*.json``) are made by ``tools/make_cuda_table.py``; ``tools/gpu/placement.py`` compares what is
said here with what the runtime itself does.
"""
