"""Types, shapes and dimensions: inferred, declared by the file, or fixed by the user.

- Inference: ``shape_inference`` (ONNX's), which reads an ``inference_model``; ``symbolic_shapes``
  and ``loop_shapes`` where it gives up; ``static_shapes`` makes computed shapes constants.
- ``dimensions`` compares lengths, also open ones; ``batch_axes`` finds the axis of the batch.
- The user's: ``input_config``, applied by ``fix_inputs``. The file's: ``declared_shapes``.
"""
