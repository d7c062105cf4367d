"""Graph rewrites, one a file. Each changes an `onnx_ir` model in place and returns a report."""
