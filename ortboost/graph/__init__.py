"""ONNX graphs: load, save, normalize, query, build. Independent of training.

- Queries and changes: ``query``, ``reach``, ``patterns``; ``build``, ``rewriting``, ``unused``.
- Files: ``io``, ``file_kind``, ``source``; ``structure`` checks them before any library sees them.
- The forms that exporters write: ``normalize`` calls most of these rewrites.
- Opsets: ``convert_opset``, ``older_forms``, ``function_bodies``.
- Shapes: ``shape_inference``, ``inference_model``, ``symbolic_shapes``, ``static_shapes``,
  ``dimensions``, ``fix_inputs``, ``batch_axes``, ``loop_shapes``.
- Stored tensors: ``parameters``, with ``classify_tensor``, ``origins``, ``weight_uses`` and
  ``generated``; ``store_weights``, ``tie_copies``, ``separate_equals``.
- Subgraphs: ``bodies``, ``inline_branches``.
- Errors of onnxruntime: ``guard_draws``, ``guard_dropouts``, ``guard_pads``, ``ceil_pools``,
  ``identity_transposes``, ``log_sigmoid``.
- Cost: ``cost``, ``layers``.
"""
