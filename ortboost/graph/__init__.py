"""ONNX graphs: load, save, normalize, query, build. Knows nothing of training."""
