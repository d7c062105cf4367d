"""Graph rewrites, one per file. Each changes an `onnx_ir` model in place and returns a report."""
