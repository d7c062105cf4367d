"""Types, shapes and dimensions: inferred, declared by the file, or fixed by the user.

- Inference: ``shape_inference`` (ONNX's), which reads an ``inference_model``; ``symbolic_shapes``
  and ``loop_shapes`` where it gives up; ``static_shapes`` makes computed shapes constants.
- ``dimensions`` compares lengths, also open ones; ``batch_axes`` finds the axis of the batch.
- Settings of the user: ``input_config``, applied by ``fix_inputs``. Shapes that the file declares:
  ``declared_shapes``.
"""
