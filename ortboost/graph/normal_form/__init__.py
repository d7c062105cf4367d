"""Rewrites to a single form of what exporters write differently; ``graph.normalize`` calls them.

- The file: ``inline_branches``, ``inline_functions``, ``fold_integers``, ``to_float32``.
- Exporters' ways of writing: ``squeezed_axes``, ``empty_reductions``, ``one_element_slices``,
  ``stack_sequences``, ``unpack_sequences``, ``unchanged_states``.
- Operators of onnxruntime's own domain: ``runtime_attention``, ``runtime_operators``,
  ``runtime_quantized``.
- Operators that onnxruntime gets wrong: ``ceil_pools``, ``guard_draws``, ``guard_dropouts``,
  ``guard_pads``, ``identity_transposes``.
"""
