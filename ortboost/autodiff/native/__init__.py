"""The native engine: onnxruntime-training's gradient builder, and what makes its graphs right."""
