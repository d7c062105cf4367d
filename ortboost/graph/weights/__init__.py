"""Which stored tensors are weights, and what is known about them.

- ``parameters`` classifies all of a model with ``classify_tensor``, which asks for the origin of a
  tensor (``origins``), its uses (``weight_uses``, ``written_norms``, ``padding_rows``,
  ``token_ids``, ``fake_quantization``) and whether a formula gives its values (``generated``).
- ``store_weights``, ``tie_copies`` and ``separate_equals`` bring the weights of a file into one
  form.
- ``training_traces`` finds what torch does in training and the file does not say.
"""
