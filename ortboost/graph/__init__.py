"""ONNX graphs: load, save, normalize, query, build. Independent of training."""
