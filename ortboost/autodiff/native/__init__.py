"""The native engine: onnxruntime-training's gradient builder, with corrections."""
