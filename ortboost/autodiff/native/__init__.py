"""The native engine: onnxruntime-training's gradient builder, with what it needs to be right."""
